#include "train/stepper.hpp"

#include <algorithm>
#include <limits>

#include "core/capture.hpp"
#include "core/tensor_impl.hpp"
#include "cuttle/error.hpp"
#include "cuttle/random.hpp"
#include "train/read_back.hpp"

namespace cuttle::train {
namespace {

/// Plans are built, state is allocated and copies are made before the step is recorded.
constexpr std::int64_t kWarmUpSteps = 3;

/// Without loss scaling the scale is 1, and 0 from the first gradient on that is not finite: later gradients are then
/// 0/0, and change nothing either.
constexpr Kernels::LossScaleRule kStopAtOverflow{
    .growth = 1, .backoff = 0, .interval = std::numeric_limits<std::int64_t>::max(), .least = 0, .most = 1};

}  // namespace

Stepper::Stepper(nn::Module& module, optim::Optimizer& optimizer, StepOptions options)
    : module_(module),
      optimizer_(optimizer),
      options_(options),
      device_(optimizer.parameters().at(0).device()),
      figures_(options.most_batches, device_) {
  if (options_.scale_loss) set_loss_scale({});
}

Stepper::~Stepper() { drop_graph(); }

void Stepper::step(const Window& window, double lr) {
  if (window.batches > figures_.most_batches()) throw Error("a window has more batches than the stepper was made for");
  optimizer_.set_lr(lr);
  if (graph_ && fingerprint() != parameters_) drop_graph();  // somebody else changed the weights
  if (graph_ && fits_graph(window)) {
    replay(window);
  } else if (wants_capture(window)) {
    capture(window);
  } else {
    run(window);
  }
  parameters_ = fingerprint();
  pending_.push_back({read_back(figures_.bytes()), window.batches, window.images});
}

std::optional<StepResult> Stepper::next(bool wait) {
  if (pending_.empty() || (!wait && !pending_.front().figures->ready())) return std::nullopt;
  const Pending done = std::move(pending_.front());
  pending_.pop_front();
  return figures_.read(done.figures->wait(), done.batches, done.images);
}

LossScale Stepper::loss_scale() const {
  const std::vector<std::int64_t> counts = figures_.counts.to_vector<std::int64_t>();
  return {figures_.scale.item<float>(), counts[0], counts[1]};
}

void Stepper::set_loss_scale(const LossScale& state) {
  figures_.scale.fill_(state.scale);
  figures_.counts.copy_(Tensor::from<std::int64_t>({state.good_steps, state.skipped_steps}, {2}));
}

void Stepper::queue(const Window& window) {
  optimizer_.zero_grad();
  add_gradients(module_, window, options_.label_smoothing, figures_);
  std::vector<Tensor> grads;
  for (const Tensor& p : optimizer_.parameters()) {
    if (const Tensor g = p.grad(); g.defined() && g.numel() > 0) grads.push_back(g);
  }
  const Kernels::LossScaleRule rule = options_.scale_loss ? Kernels::LossScaleRule() : kStopAtOverflow;
  kernels(figures_.norm)
      .gradient_factor(grads, figures_.norm, figures_.scale, figures_.counts, options_.clip_grad_norm, rule,
                       figures_.factor);
  optimizer_.step(figures_.factor);
}

void Stepper::run(const Window& window) {
  const AllocationScope scope = memory_scope();
  queue(window);
}

bool Stepper::wants_capture(const Window& window) {
  if (!options_.capture || graph_ || !why_not_captured_.empty() || !backend(device_.kind).capture) return false;
  const Size size{window.batches, window.images};
  const bool again = std::exchange(latest_, size) == size;
  if (size != usual_) {
    if (repeats_ > 0 && !again) return false;  // the last of an epoch, which may be smaller or larger
    usual_ = size;
    repeats_ = 0;
  }
  return repeats_++ >= kWarmUpSteps;
}

bool Stepper::fits_graph(const Window& window) const {
  const PhiloxKey now = default_generator().state();
  return Size{window.batches, window.images} == usual_ && now.seed == recorded_from_.seed &&
         now.stream == recorded_from_.stream;
}

/// Records the step and runs it; op by op if it cannot be recorded.
void Stepper::capture(const Window& window) {
  inputs_.clear();
  for (std::int64_t b = 0; b < window.batches; ++b) inputs_.push_back(window.load(b, {}));
  Window recorded = window;
  recorded.load = [this](std::int64_t b, const data::Batch&) { return inputs_[static_cast<std::size_t>(b)]; };

  optimizer_.zero_grad();  // the pool takes over what the steps before have left free
  pool_ = memory::allocator(device_).create_private_pool();
  recorded_from_ = default_generator().state();
  const std::int64_t steps = optimizer_.steps();
  try {
    const AllocationScope memory_scope(device_, pool_);
    const RandomAdvanceScope random_scope(figures_.advance);
    graph_ = backend(device_.kind).capture(device_.index, [this, recorded] { queue(recorded); });
  } catch (const DeviceError& error) {
    why_not_captured_ = error.cause();
  } catch (const OutOfMemoryError& error) {
    why_not_captured_ = error.cause();
  }
  recorded_draws_ = default_generator().state().offset - recorded_from_.offset;
  default_generator().set_state(recorded_from_);
  optimizer_.set_steps(steps);
  if (graph_) return replay(recorded);
  drop_graph();
  run(recorded);
  inputs_.clear();
}

void Stepper::replay(const Window& window) {
  for (std::int64_t b = 0; b < window.batches; ++b) {
    const data::Batch& input = inputs_[static_cast<std::size_t>(b)];
    const data::Batch batch = window.load(b, input);
    if (batch.images.impl() != input.images.impl() || batch.labels.impl() != input.labels.impl()) {
      throw Error("a window gave a batch in other tensors than the recorded step reads");
    }
  }
  PhiloxKey now = default_generator().state();
  if (recorded_draws_ > 0) {
    figures_.advance.fill_(static_cast<double>(now.offset - recorded_from_.offset));
    now.offset += recorded_draws_;
    default_generator().set_state(now);
  }
  graph_->replay();
  optimizer_.set_steps(optimizer_.steps() + 1);
}

void Stepper::drop_graph() {
  graph_.reset();
  repeats_ = 0;
  if (pool_ == 0) return;
  optimizer_.zero_grad();  // gradients lie in the pool
  memory::allocator(device_).release_private_pool(pool_);
  pool_ = 0;
}

Stepper::Fingerprint Stepper::fingerprint() const {
  Fingerprint result;
  result.reserve(optimizer_.parameters().size());
  for (const Tensor& p : optimizer_.parameters()) result.emplace_back(p.raw_data(), p.version());
  return result;
}

}  // namespace cuttle::train
