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

constexpr const char* kOp = "conv2d";

Shape output_shape(const Tensor& x, const Tensor& weight, const Tensor& bias, const Conv2dOptions& o) {
  check::rank(kOp, "input", x, 4);
  check::rank(kOp, "weight", weight, 4);
  check::floating(kOp, x);
  check::same_device(kOp, {&x, &weight, &bias});
  check::parameters_dtype(kOp, x, {&weight, &bias});
  check::sizes_in_range(kOp, "stride", o.stride, 1);
  check::sizes_in_range(kOp, "padding", o.padding, 0);
  check::sizes_in_range(kOp, "dilation", o.dilation, 1);
  const std::int64_t filters = weight.size(0);
  if (o.groups < 1 || x.size(1) % o.groups != 0 || filters % o.groups != 0) {
    throw ShapeError(fmt::format("{}: {} groups do not divide the {} channels of {} and the {} filters of {}", kOp,
                                 o.groups, x.size(1), x.str(), filters, weight.str()));
  }
  if (weight.size(1) != x.size(1) / o.groups) {
    throw ShapeError(fmt::format("{}: {} takes {} channels a group, but {} has {} / {} groups = {}", kOp, weight.str(),
                                 weight.size(1), x.str(), x.size(1), o.groups, x.size(1) / o.groups));
  }
  if (weight.numel() == 0) throw ShapeError(fmt::format("{}: weight {} is empty", kOp, weight.str()));
  check::sizes_in_range(kOp, "kernel", {weight.size(2), weight.size(3)}, 1);
  check::shape_if_defined(kOp, "bias", bias, {filters});
  return {x.size(0), filters,
          check::window_places(kOp, "height", x, x.size(2), weight.size(2), o.stride.h, o.padding.h, o.dilation.h),
          check::window_places(kOp, "width", x, x.size(3), weight.size(3), o.stride.w, o.padding.w, o.dilation.w)};
}

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, Conv2dOptions options,
              const Activation& then) {
  const Shape shape = output_shape(x, weight, bias, options);
  ops::check_activation(kOp, then, shape);
  const bool relu = ops::is_plain_relu(then);
  const Tensor w = autograd::in_dtype(weight, x.dtype()).to(x.layout());
  const Tensor b = bias.defined() ? autograd::in_dtype(bias, x.dtype()) : bias;
  Tensor y = Tensor::empty(shape, x.options());
  if (y.numel() > 0) kernels(x).conv2d(x, w, b, options, relu, y);
  // A copy has no history: the gradient goes to its leaf.
  const Tensor &w_input = w.requires_grad() ? w : weight, &b_input = b.defined() && b.requires_grad() ? b : bias;
  if (!autograd::recording({&x, &w_input, &b_input})) return ops::finish(std::move(y), then);

  // What an input's gradient does not need is not kept: a frozen layer holds no activations.
  const Saved saved_x = w_input.requires_grad() ? Saved(x) : Saved();
  const Saved saved_w = x.requires_grad() ? Saved(w) : Saved();
  const ops::BiasBackward bias_backward(kOp, y, relu);
  autograd::record(kOp, y, {&x, &w_input, &b_input},
                   [saved_x, saved_w, bias_backward, options, x_shape = x.shape(), w_shape = w.shape(),
                    like = x.options()](Tensor dy, Gradients& in) {
                     const Kernels& k = kernels(dy);
                     const bool empty = dy.numel() == 0;
                     dy = bias_backward(std::move(dy), in, 2, like);
                     autograd::give_accumulating(in, 1, w_shape, like, empty, [&](const Tensor& dw, bool accumulate) {
                       k.conv2d_backward_filter(dy, saved_x.get(kOp), options, dw, accumulate);
                     });
                     if (in.needed(0)) {
                       Tensor dx = Tensor::empty(x_shape, like);
                       if (!empty) k.conv2d_backward_data(dy, saved_w.get(kOp), options, dx);
                       in.give(0, std::move(dx));
                     }
                   });
  return ops::finish(std::move(y), then);
}

}  // namespace cuttle
