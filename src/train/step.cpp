#include "train/step.hpp"

#include <cmath>
#include <vector>

#include "cuttle/autograd.hpp"
#include "cuttle/ops.hpp"
#include "kernels.hpp"

namespace cuttle::train {
namespace {

Tensor gradient_norm(const std::vector<Tensor>& parameters) {
  const NoGrad no_grad;
  std::vector<Tensor> gradients;
  for (const Tensor& p : parameters) {
    if (p.grad().defined()) gradients.push_back(p.grad());
  }
  Tensor norm = Tensor::zeros({}, {.device = parameters.at(0).device()});
  if (!gradients.empty()) kernels(norm).global_norm(gradients, norm);
  return norm;
}

}  // namespace

bool StepResult::finite() const { return std::isfinite(loss) && std::isfinite(grad_norm); }

StepResult accumulate_gradients(nn::Module& module, optim::Optimizer& optimizer, const Window& window,
                                const StepOptions& options) {
  optimizer.zero_grad();
  const CrossEntropyOptions loss_options{.label_smoothing = options.label_smoothing, .reduction = Reduction::sum};
  std::vector<Tensor> losses, correct;
  for (std::int64_t b = 0; b < window.batches; ++b) {
    const data::Batch batch = window.load(b);
    const Tensor logits = module(batch.images);
    const Tensor loss =
        mul(cross_entropy(logits, batch.labels, loss_options), 1.0 / static_cast<double>(window.images));
    correct.push_back(correct_count(logits, batch.labels));
    loss.backward();
    losses.push_back(loss.detach());
  }
  const Tensor norm = options.clip_grad_norm > 0
                          ? optim::clip_grad_norm_(optimizer.parameters(), options.clip_grad_norm)
                          : gradient_norm(optimizer.parameters());
  // All is queued; now it may be waited for.
  StepResult result;
  for (const Tensor& loss : losses) result.loss += loss.item<float>();
  for (const Tensor& count : correct) result.correct += count.item<std::int64_t>();
  result.grad_norm = norm.item<float>();
  return result;
}

}  // namespace cuttle::train
