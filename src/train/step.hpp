#pragma once
#include <cstdint>
#include <functional>
#include <optional>

#include "cuttle/data.hpp"
#include "cuttle/nn.hpp"
#include "cuttle/optim.hpp"

namespace cuttle::train {

struct StepOptions {
  double label_smoothing = 0;
  double clip_grad_norm = 0;      ///< 0: no clipping
  bool measure_grad_norm = true;  ///< without clipping: reads every gradient once more
};

struct StepResult {
  double loss = 0;                  ///< mean over the images, before the update
  std::optional<double> grad_norm;  ///< 2-norm of all gradients, before clipping; unset: not measured
  std::int64_t correct = 0;
  bool finite() const;
};

/// The batches that one optimizer step learns from.
struct Window {
  std::int64_t batches = 1;
  std::int64_t images = 0;  ///< in all of them
  std::function<data::Batch(std::int64_t)> load;
};

/// Leaves in the parameters the gradient of the mean loss over all images of the window: each batch's sum of losses is
/// divided by the images of the window, so batches of different size weigh as they should. Waits for the device once,
/// when all is queued.
/// Call optimizer.step() if the result is finite.
StepResult accumulate_gradients(nn::Module& module, optim::Optimizer& optimizer, const Window& window,
                                const StepOptions& options);

}  // namespace cuttle::train
