#include <fmt/format.h>

#include "autograd/copy.hpp"
#include "autograd/node.hpp"
#include "kernels.hpp"
#include "ops/activation.hpp"
#include "ops/check.hpp"
#include "ops/gradient.hpp"

namespace cuttle {

using autograd::Gradients;
using autograd::Saved;

namespace {

constexpr const char* kOp = "linear";

/// x[M,I] -> [M,O], checked by the caller.
Tensor linear_rows(const Tensor& x, const Tensor& weight, const Tensor& bias, const Activation& then) {
  const bool relu = ops::is_plain_relu(then);
  const Tensor w = autograd::in_dtype(weight, x.dtype());
  const Tensor b = bias.defined() ? autograd::in_dtype(bias, x.dtype()) : bias;
  Tensor y = Tensor::empty({x.size(0), weight.size(0)}, x.options());
  if (y.numel() > 0) kernels(x).linear(x, w, b, relu, y);
  // A copy has no history: the gradient goes to its leaf.
  const Tensor &w_input = w.requires_grad() ? w : weight, &b_input = b.defined() && b.requires_grad() ? b : bias;
  if (!autograd::recording({&x, &w_input, &b_input})) return ops::finish(std::move(y), then);

  const Saved saved_x = w_input.requires_grad() ? Saved(x) : Saved();
  const Saved saved_w = x.requires_grad() ? Saved(w) : Saved();
  const ops::BiasBackward bias_backward(kOp, y, relu);
  autograd::record(kOp, y, {&x, &w_input, &b_input},
                   [saved_x, saved_w, bias_backward, x_shape = x.shape(), w_shape = weight.shape(), like = x.options()](
                       Tensor dy, Gradients& in) {
                     const Kernels& k = kernels(dy);
                     const bool empty = dy.numel() == 0;
                     dy = bias_backward(std::move(dy), in, 2, like);
                     autograd::give_accumulating(in, 1, w_shape, like, empty, [&](const Tensor& dw, bool accumulate) {
                       k.linear_backward_weight(dy, saved_x.get(kOp), dw, accumulate);
                     });
                     if (in.needed(0)) {
                       Tensor dx = Tensor::empty(x_shape, like);
                       if (!empty) k.linear_backward_data(dy, saved_w.get(kOp), dx);
                       in.give(0, std::move(dx));
                     }
                   });
  return ops::finish(std::move(y), then);
}

}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Activation& then) {
  check::floating(kOp, x);
  check::same_device(kOp, {&x, &weight, &bias});
  check::parameters_dtype(kOp, x, {&weight, &bias});
  check::rank(kOp, "weight", weight, 2);
  if (x.rank() < 1 || x.size(-1) != weight.size(1)) {
    throw ShapeError(fmt::format("{}: the last dimension of {} does not match the {} inputs of weight {}", kOp, x.str(),
                                 weight.size(1), weight.str()),
                     x.rank() == 4 ? "flatten() the images first" : "");
  }
  if (weight.numel() == 0) throw ShapeError(fmt::format("{}: weight {} is empty", kOp, weight.str()));
  check::shape_if_defined(kOp, "bias", bias, {weight.size(0)});
  Shape shape = x.shape();
  shape[-1] = weight.size(0);
  ops::check_activation(kOp, then, shape);
  if (x.rank() == 2) return linear_rows(x, weight, bias, then);
  const std::int64_t rows = x.numel() / x.size(-1);
  Activation of_rows = then;
  if (then.residual.defined()) of_rows.residual = then.residual.reshape(Shape{rows, shape[-1]});
  return linear_rows(x.reshape(Shape{rows, x.size(-1)}), weight, bias, of_rows).reshape(shape);
}

}  // namespace cuttle
