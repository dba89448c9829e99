#pragma once
#include <cstdint>
#include <functional>

#include "cuttle/data.hpp"
#include "cuttle/nn.hpp"
#include "kernels.hpp"

namespace cuttle::train {

/// The batches that one optimizer step learns from.
struct Window {
  std::int64_t batches = 1;
  std::int64_t images = 0;  ///< in all of them
  /// Batch b, as data::Loader::load gives it: in the tensors of `into` where those are defined.
  std::function<data::Batch(std::int64_t b, const data::Batch& into)> load;
};

/// State of dynamic loss scaling, as it lies on the device.
struct LossScale {
  float scale = 65536;
  std::int64_t good_steps = 0;     ///< in a row, since the scale changed
  std::int64_t skipped_steps = 0;  ///< in a row
};

struct StepResult {
  double loss = 0;       ///< mean over the images, before the update
  double grad_norm = 0;  ///< 2-norm of all gradients, before clipping
  std::int64_t correct = 0, images = 0;
  LossScale loss_scale;  ///< after the step
  bool finite() const;
  /// Whether the step changed nothing, because a gradient is not finite.
  bool skipped() const;
};

/// The figures of a step and the numbers that steer it, side by side in one array on the device: kernels write their
/// results where they belong, and one copy brings all to the host.
class Figures {
 public:
  Figures(std::int64_t most_batches, Device device);
  Tensor scale, norm, factor;            ///< f32 scalars
  Tensor counts;                         ///< i64[2], of the loss scale
  Tensor advance;                        ///< i64 scalar: how far the random numbers of a recorded step have moved on
  Tensor loss(std::int64_t b) const;     ///< f32 scalar: mean over a window of one batch, else the sum of batch b
  Tensor correct(std::int64_t b) const;  ///< i64 scalar
  const Tensor& bytes() const { return bytes_; }
  std::int64_t most_batches() const { return most_batches_; }
  /// From a copy of bytes() on the host.
  StepResult read(const void* bytes, std::int64_t batches, std::int64_t images) const;

 private:
  template <class T> Tensor view(std::int64_t offset, const Shape& shape) const;
  std::int64_t most_batches_;
  Tensor bytes_;
};

/// Adds to the parameters' gradients those of the mean loss over all images of the window, times figures.scale: batches
/// of different size weigh as they should. Losses and correct answers go to `figures`. Waits for nothing.
void add_gradients(nn::Module& module, const Window& window, double label_smoothing, const Figures& figures);

}  // namespace cuttle::train
