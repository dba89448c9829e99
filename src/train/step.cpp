#include "train/step.hpp"

#include <cmath>
#include <cstring>

#include "core/tensor_impl.hpp"
#include "cuttle/autograd.hpp"
#include "cuttle/ops.hpp"
#include "ops/classify.hpp"

namespace cuttle::train {
namespace {

// Places in the array; then the correct answers (i64) and the losses (f32) of each batch.
constexpr std::int64_t kScale = 0, kNorm = 4, kFactor = 8, kCounts = 16, kAdvance = 32, kCorrect = 40;

template <class T> T at(const void* bytes, std::int64_t offset) {
  T value;
  std::memcpy(&value, static_cast<const char*>(bytes) + offset, sizeof(T));
  return value;
}

}  // namespace

bool StepResult::finite() const { return std::isfinite(loss) && std::isfinite(grad_norm); }
bool StepResult::skipped() const { return !std::isfinite(grad_norm); }

Figures::Figures(std::int64_t most_batches, Device device)
    : most_batches_(most_batches),
      bytes_(Tensor::zeros({kCorrect + most_batches * static_cast<std::int64_t>(sizeof(std::int64_t) + sizeof(float))},
                           {.dtype = DType::u8, .device = device})) {
  scale = view<float>(kScale, {});
  norm = view<float>(kNorm, {});
  factor = view<float>(kFactor, {});
  counts = view<std::int64_t>(kCounts, {2});
  advance = view<std::int64_t>(kAdvance, {});
  scale.fill_(1);
}

template <class T> Tensor Figures::view(std::int64_t offset, const Shape& shape) const {
  return make_tensor(bytes_.impl()->storage, static_cast<std::size_t>(offset), shape, dtype_of<T>, Layout::nhwc);
}

Tensor Figures::correct(std::int64_t b) const { return view<std::int64_t>(kCorrect + 8 * b, {}); }
Tensor Figures::loss(std::int64_t b) const { return view<float>(kCorrect + 8 * most_batches_ + 4 * b, {}); }

StepResult Figures::read(const void* bytes, std::int64_t batches, std::int64_t images) const {
  StepResult result;
  result.grad_norm = at<float>(bytes, kNorm);
  result.images = images;
  result.loss_scale = {at<float>(bytes, kScale), at<std::int64_t>(bytes, kCounts),
                       at<std::int64_t>(bytes, kCounts + 8)};
  for (std::int64_t b = 0; b < batches; ++b) {
    result.loss += at<float>(bytes, kCorrect + 8 * most_batches_ + 4 * b);
    result.correct += at<std::int64_t>(bytes, kCorrect + 8 * b);
  }
  if (batches > 1) result.loss /= static_cast<double>(images);
  return result;
}

void add_gradients(nn::Module& module, const Window& window, double label_smoothing, const Figures& figures) {
  // The factors of the loss come in as the gradient that backward starts from, so that no kernel multiplies by them.
  const bool one = window.batches == 1;
  Tensor start = figures.scale;
  if (!one) {
    const NoGrad no_grad;
    start = mul(start, 1.0 / static_cast<double>(window.images));
  }
  const CrossEntropyOptions options{.label_smoothing = label_smoothing,
                                    .reduction = one ? Reduction::mean : Reduction::sum};
  for (std::int64_t b = 0; b < window.batches; ++b) {
    const data::Batch batch = window.load(b, {});
    const Tensor logits = module(batch.images);
    Tensor loss = figures.loss(b);
    ops::cross_entropy_into(loss, logits, batch.labels, options, figures.correct(b));
    loss.backward(start);
  }
}

}  // namespace cuttle::train
