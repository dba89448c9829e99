#include "train/step.hpp"

#include <cmath>

#include "cuttle/autograd.hpp"
#include "cuttle/ops.hpp"

namespace cuttle::train {
namespace {

/// The figures of a step, in one f64 tensor on the device: the loss and the correct answers of each batch, then the
/// norm. One read brings all to the host, after all work is queued.
class Figures {
 public:
  Figures(std::int64_t batches, Device device)
      : batches_(batches), values_(Tensor::zeros({2 * batches + 1}, {.dtype = DType::f64, .device = device})) {}

  void put_batch(std::int64_t b, const Tensor& loss, const Tensor& correct) {
    put(b, loss);
    put(batches_ + b, correct);
  }
  void put_norm(const Tensor& norm) {
    put(2 * batches_, norm);
    has_norm_ = true;
  }
  StepResult read() const {
    const std::vector<double> values = values_.to_vector<double>();
    StepResult result;
    for (std::int64_t b = 0; b < batches_; ++b) {
      result.loss += values[static_cast<std::size_t>(b)];
      result.correct += static_cast<std::int64_t>(values[static_cast<std::size_t>(batches_ + b)]);
    }
    if (has_norm_) result.grad_norm = values.back();
    return result;
  }

 private:
  void put(std::int64_t i, const Tensor& value) {
    const NoGrad no_grad;
    values_.slice(i, i + 1).copy_(value.detach().reshape({1}));
  }

  std::int64_t batches_;
  Tensor values_;
  bool has_norm_ = false;
};

}  // namespace

bool StepResult::finite() const { return std::isfinite(loss) && (!grad_norm || std::isfinite(*grad_norm)); }

StepResult accumulate_gradients(nn::Module& module, optim::Optimizer& optimizer, const Window& window,
                                const StepOptions& options) {
  optimizer.zero_grad();
  const CrossEntropyOptions loss_options{.label_smoothing = options.label_smoothing, .reduction = Reduction::sum};
  Figures figures(window.batches, optimizer.parameters().at(0).device());
  for (std::int64_t b = 0; b < window.batches; ++b) {
    const data::Batch batch = window.load(b);
    const Tensor logits = module(batch.images);
    const Tensor loss =
        mul(cross_entropy(logits, batch.labels, loss_options), 1.0 / static_cast<double>(window.images));
    loss.backward();
    figures.put_batch(b, loss, correct_count(logits, batch.labels));
  }
  if (options.clip_grad_norm > 0) {
    figures.put_norm(optim::clip_grad_norm_(optimizer.parameters(), options.clip_grad_norm));
  } else if (options.measure_grad_norm) {
    figures.put_norm(optim::grad_norm(optimizer.parameters()));
  }
  return figures.read();
}

}  // namespace cuttle::train
