#include "ops/classify.hpp"

#include <fmt/format.h>

#include "autograd/node.hpp"
#include "kernels.hpp"
#include "ops/check.hpp"

namespace cuttle {

using autograd::Gradients;
using autograd::Saved;

namespace {

void check_rows(const char* op, const Tensor& x) {
  check::rank(op, "input", x, 2);
  check::floating(op, x);
  if (x.size(1) == 0) throw ShapeError(fmt::format("{}: {} has no classes", op, x.str()));
}

void check_targets(const char* op, const Tensor& logits, const Tensor& targets) {
  check_rows(op, logits);
  check::same_device(op, {&logits, &targets});
  check::dtype(op, "targets", targets, DType::i64);
  if (targets.shape() != Shape{logits.size(0)}) {
    throw ShapeError(fmt::format("{}: targets {} do not fit the {} rows of logits {}", op, targets.str(),
                                 logits.size(0), logits.str()));
  }
}

using RowSlot = Slot<void(const Tensor&, const Tensor&)>;
using RowBackwardSlot = Slot<void(const Tensor&, const Tensor&, const Tensor&)>;

/// Softmax or its logarithm: both backwards need the output alone.
Tensor rows(const char* op, const Tensor& x, RowSlot Kernels::*forward, RowBackwardSlot Kernels::*backward) {
  check_rows(op, x);
  Tensor y = Tensor::empty(x.shape(), x.options());
  if (y.numel() > 0) (kernels(x).*forward)(x, y);
  if (autograd::recording({&x})) {
    autograd::record(op, y, {&x}, [op, backward, saved = Saved(y)](Tensor dy, Gradients& in) {
      Tensor dx = Tensor::empty(dy.shape(), dy.options());
      if (dx.numel() > 0) (kernels(dy).*backward)(dy, saved.get(op), dx);
      in.give(0, std::move(dx));
    });
  }
  return y;
}

}  // namespace

Tensor log_softmax(const Tensor& x) {
  return rows("log_softmax", x, &Kernels::log_softmax, &Kernels::log_softmax_backward);
}

Tensor softmax(const Tensor& x) { return rows("softmax", x, &Kernels::softmax, &Kernels::softmax_backward); }

namespace {

/// A loss of 16 bits would overflow as soon as it is scaled.
TensorOptions wide_like(const Tensor& logits) {
  TensorOptions wide = logits.options();
  if (wide.dtype != DType::f64) wide.dtype = DType::f32;
  return wide;
}

}  // namespace

void ops::cross_entropy_into(Tensor& loss, const Tensor& logits, const Tensor& targets, CrossEntropyOptions options,
                             const Tensor& correct) {
  constexpr const char* kOp = "cross_entropy";
  check_targets(kOp, logits, targets);
  if (!(options.label_smoothing >= 0 && options.label_smoothing <= 1)) {
    throw UsageError(fmt::format("{}: label smoothing {} is not in [0, 1]", kOp, options.label_smoothing));
  }
  if (logits.numel() == 0) {
    throw ShapeError(fmt::format("{}: {} has no rows, so there is no loss", kOp, logits.str()));
  }
  const TensorOptions wide = wide_like(logits);
  check::dtype(kOp, "result", loss, wide.dtype);
  if (correct.defined()) check::dtype(kOp, "number of correct answers", correct, DType::i64);
  const Tensor log_sum_exp = Tensor::empty({logits.size(0)}, wide);
  kernels(logits).cross_entropy(logits, targets, options, loss, log_sum_exp, correct);
  if (autograd::recording({&logits})) {
    autograd::record(
        kOp, loss, {&logits},
        [saved = Saved(logits), saved_targets = Saved(targets), log_sum_exp, options](Tensor d_loss, Gradients& in) {
          const Tensor& logits = saved.get(kOp);
          Tensor dx = Tensor::empty(logits.shape(), logits.options());
          kernels(logits).cross_entropy_backward(d_loss, logits, saved_targets.get(kOp), log_sum_exp, options, dx);
          in.give(0, std::move(dx));
        });
  }
}

Tensor cross_entropy(const Tensor& logits, const Tensor& targets, CrossEntropyOptions options) {
  Tensor loss = Tensor::empty({}, wide_like(logits));
  ops::cross_entropy_into(loss, logits, targets, options);
  return loss;
}

Tensor correct_count(const Tensor& logits, const Tensor& targets) {
  check_targets("correct_count", logits, targets);
  if (logits.numel() == 0) return Tensor::zeros({}, {DType::i64, logits.device()});
  Tensor out = Tensor::empty({}, {DType::i64, logits.device()});
  kernels(logits).correct_count(logits, targets, out);
  return out;
}

double accuracy(const Tensor& logits, const Tensor& targets) {
  const auto correct = correct_count(logits, targets).item<std::int64_t>();
  return logits.size(0) == 0 ? 0 : static_cast<double>(correct) / static_cast<double>(logits.size(0));
}

}  // namespace cuttle
