#include "ops/activation.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "kernels.hpp"
#include "ops/elementwise.hpp"
#include "ops/gradient.hpp"

namespace cuttle::ops {

bool is_plain_relu(const Activation& then) { return then.relu && !then.residual.defined() && std::isinf(then.ceiling); }

void check_activation(const char* op, const Activation& then, const Shape& result) {
  if (then.relu && !(then.ceiling > 0)) {
    throw UsageError(fmt::format("{}: ceiling {} is not above 0", op, then.ceiling), "6 makes it ReLU6");
  }
  if (then.residual.defined() && then.residual.shape() != result) {
    throw ShapeError(
        fmt::format("{}: the residual {} does not have the result's shape {}", op, then.residual.str(), result.str()));
  }
}

Tensor finish(Tensor y, const Activation& then) {
  if (is_plain_relu(then)) return y;
  if (then.residual.defined()) y = add_(std::move(y), then.residual);
  return then.relu ? clamp_(std::move(y), then.ceiling) : y;
}

BiasBackward::BiasBackward(const char* op, const Tensor& y, bool relu)
    : op_(op), relu_(relu), channels_(y.size(1)), y_(relu ? autograd::Saved(y) : autograd::Saved()) {}

Tensor BiasBackward::operator()(Tensor dy, autograd::Gradients& inputs, std::size_t i, TensorOptions options) const {
  const Kernels& k = kernels(dy);
  const bool empty = dy.numel() == 0;
  if (!relu_) {
    autograd::give_accumulating(inputs, i, {channels_}, options, empty,
                                [&](const Tensor& db, bool accumulate) { k.bias_backward(dy, db, accumulate); });
    return dy;
  }
  const Tensor& y = y_.get(op_);
  Tensor before = is_exclusive(dy) ? dy : Tensor::empty(dy.shape(), dy.options());
  if (inputs.needed(i)) {
    autograd::give_accumulating(inputs, i, {channels_}, options, empty, [&](const Tensor& db, bool accumulate) {
      k.bias_relu_backward(y, dy, before, db, accumulate);
    });
  } else if (!empty) {
    k.relu_backward(y, dy, std::numeric_limits<double>::infinity(), before);
  }
  return before;
}

}  // namespace cuttle::ops
