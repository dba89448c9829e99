#include <fmt/format.h>

#include "autograd/node.hpp"
#include "kernels.hpp"
#include "ops/check.hpp"

namespace cuttle {

using autograd::Gradients;
using autograd::Saved;

namespace {

/// Checks the options, sets the stride and returns the output's shape.
Shape resolve(const char* op, const Tensor& x, Pool2dOptions& o) {
  check::rank(op, "input", x, 4);
  check::floating(op, x);
  if (x.size(2) == 0 || x.size(3) == 0) throw ShapeError(fmt::format("{}: {} has no pixels", op, x.str()));
  if (o.stride.h == 0) o.stride.h = o.kernel.h;
  if (o.stride.w == 0) o.stride.w = o.kernel.w;
  check::sizes_in_range(op, "kernel", o.kernel, 1);
  check::sizes_in_range(op, "stride", o.stride, 1);
  check::sizes_in_range(op, "padding", o.padding, 0);
  check::sizes_in_range(op, "dilation", o.dilation, 1);
  if (o.padding.h > o.kernel.h / 2 || o.padding.w > o.kernel.w / 2) {
    throw ShapeError(fmt::format("{}: padding {}x{} is more than half the kernel {}x{}", op, o.padding.h, o.padding.w,
                                 o.kernel.h, o.kernel.w),
                     "a window could then lie wholly in the padding");
  }
  return {
      x.size(0), x.size(1),
      check::window_places(op, "height", x, x.size(2), o.kernel.h, o.stride.h, o.padding.h, o.dilation.h, o.ceil_mode),
      check::window_places(op, "width", x, x.size(3), o.kernel.w, o.stride.w, o.padding.w, o.dilation.w, o.ceil_mode)};
}

}  // namespace

Tensor max_pool2d(const Tensor& x, Pool2dOptions options) {
  constexpr const char* kOp = "max_pool2d";
  const Shape shape = resolve(kOp, x, options);
  Tensor y = Tensor::empty(shape, x.options());
  const bool recording = autograd::recording({&x});
  Tensor argmax;
  if (recording) {
    const DType place = options.kernel.h * options.kernel.w <= 256 ? DType::u8 : DType::i32;
    argmax = Tensor::empty(shape, {place, x.device(), x.layout()});
  }
  if (y.numel() > 0) kernels(x).max_pool2d(x, options, y, argmax);
  if (recording) {
    // Only the winners' places are kept, a byte each: neither input nor output.
    autograd::record(kOp, y, {&x}, [argmax, options, from = x.shape(), like = x.options()](Tensor dy, Gradients& in) {
      Tensor dx = Tensor::empty(from, like);
      if (dy.numel() > 0) kernels(dy).max_pool2d_backward(dy, argmax, options, dx);
      in.give(0, std::move(dx));
    });
  }
  return y;
}

Tensor avg_pool2d(const Tensor& x, Pool2dOptions options) {
  constexpr const char* kOp = "avg_pool2d";
  const Shape shape = resolve(kOp, x, options);
  if (options.dilation != Size2(1)) throw ShapeError("avg_pool2d: it has no dilation");
  Tensor y = Tensor::empty(shape, x.options());
  if (y.numel() > 0) kernels(x).avg_pool2d(x, options, y);
  if (autograd::recording({&x})) {
    autograd::record(kOp, y, {&x}, [options, from = x.shape(), like = x.options()](Tensor dy, Gradients& in) {
      Tensor dx = Tensor::empty(from, like);
      if (dy.numel() > 0) kernels(dy).avg_pool2d_backward(dy, options, dx);
      in.give(0, std::move(dx));
    });
  }
  return y;
}

Tensor adaptive_avg_pool2d(const Tensor& x, Size2 output) {
  constexpr const char* kOp = "adaptive_avg_pool2d";
  check::rank(kOp, "input", x, 4);
  check::floating(kOp, x);
  check::sizes_in_range(kOp, "output", output, 1);
  if (x.size(2) == 0 || x.size(3) == 0) {
    throw ShapeError(fmt::format("{}: {} has no pixels to average", kOp, x.str()));
  }
  Tensor y = Tensor::empty({x.size(0), x.size(1), output.h, output.w}, x.options());
  if (y.numel() > 0) kernels(x).adaptive_avg_pool2d(x, y);
  if (autograd::recording({&x})) {
    autograd::record(kOp, y, {&x}, [from = x.shape(), like = x.options()](Tensor dy, Gradients& in) {
      Tensor dx = Tensor::empty(from, like);
      if (dy.numel() > 0) kernels(dy).adaptive_avg_pool2d_backward(dy, dx);
      in.give(0, std::move(dx));
    });
  }
  return y;
}

Tensor global_avg_pool2d(const Tensor& x) { return adaptive_avg_pool2d(x, 1); }

}  // namespace cuttle
