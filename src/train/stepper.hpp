#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/capture.hpp"
#include "cuttle/memory.hpp"
#include "cuttle/optim.hpp"
#include "cuttle/philox.hpp"
#include "train/step.hpp"

namespace cuttle::train {

struct StepOptions {
  double label_smoothing = 0;
  double clip_grad_norm = 0;      ///< 0: no clipping
  bool scale_loss = false;        ///< dynamic loss scaling, for fp16
  bool capture = true;            ///< record the step where the backend can, and replay it
  std::int64_t most_batches = 1;  ///< of a window
};

/// Runs optimizer steps without waiting for the device: gradients of a window, their norm, and an update that the
/// device itself leaves out where a gradient is not finite. Without loss scaling it then leaves out every later one
/// too, so that the weights stay those that went wrong.
///
/// Where the backend can, a step whose window has the same numbers of batches and images a few times is recorded whole
/// and replayed from then on; other windows (the last of an epoch) run op by op, in the memory of the recorded one.
class Stepper {
 public:
  /// Both must outlive it. The device is that of the parameters, which must not move to another one meanwhile.
  Stepper(nn::Module& module, optim::Optimizer& optimizer, StepOptions options);
  ~Stepper();
  Stepper(const Stepper&) = delete;
  Stepper& operator=(const Stepper&) = delete;

  /// Queues one step.
  void step(const Window& window, double lr);
  /// The result of the earliest step that was not asked for yet; nothing if there is none, or if it would have to wait
  /// and `wait` is false.
  std::optional<StepResult> next(bool wait);
  std::int64_t pending() const { return static_cast<std::int64_t>(pending_.size()); }  ///< results not asked for yet

  LossScale loss_scale() const;  ///< waits for the device
  void set_loss_scale(const LossScale& state);
  bool captured() const { return graph_ != nullptr; }
  /// While it lives, this thread allocates in the recorded step's memory, which is free between steps: for work whose
  /// tensors are gone before the next step.
  AllocationScope memory_scope() const { return {device_, pool_}; }
  /// Why steps are not recorded although the backend could; empty otherwise.
  const std::string& why_not_captured() const { return why_not_captured_; }

 private:
  struct Pending {
    std::unique_ptr<Readback> figures;
    std::int64_t batches, images;
  };
  using Fingerprint = std::vector<std::pair<const void*, std::uint32_t>>;

  void queue(const Window& window);  ///< all the work of one step
  void run(const Window& window);
  void capture(const Window& window);
  void replay(const Window& window);
  void drop_graph();
  bool wants_capture(const Window& window);
  bool fits_graph(const Window& window) const;
  Fingerprint fingerprint() const;

  nn::Module& module_;
  optim::Optimizer& optimizer_;
  StepOptions options_;
  Device device_;
  Figures figures_;
  std::deque<Pending> pending_;

  std::unique_ptr<CapturedWork> graph_;
  memory::PoolId pool_ = 0;
  std::vector<data::Batch> inputs_;  ///< that the recorded step reads
  PhiloxKey recorded_from_;
  std::uint64_t recorded_draws_ = 0;
  Fingerprint parameters_;                             ///< as the latest step left them
  using Size = std::pair<std::int64_t, std::int64_t>;  ///< batches and images of a window
  Size usual_, latest_;
  std::int64_t repeats_ = 0;
  std::string why_not_captured_;
};

}  // namespace cuttle::train
