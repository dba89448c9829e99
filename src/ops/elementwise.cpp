#include "ops/elementwise.hpp"

#include <fmt/format.h>

#include <limits>

#include "autograd/node.hpp"
#include "core/capture.hpp"
#include "kernels.hpp"
#include "ops/check.hpp"

namespace cuttle {

using autograd::Gradients;
using autograd::recording;
using autograd::Saved;

namespace {

constexpr double kNoCeiling = std::numeric_limits<double>::infinity();

void record_relu(const char* op, double ceiling, Tensor& y, const Tensor& x) {
  autograd::record(op, y, {&x}, [op, ceiling, saved = Saved(y)](Tensor dy, Gradients& in) {
    const Tensor& out = saved.get(op);
    Tensor dx = is_exclusive(dy) ? dy : Tensor::empty(dy.shape(), dy.options());
    if (dx.numel() > 0) kernels(dy).relu_backward(out, dy, ceiling, dx);
    dy = {};
    in.give(0, std::move(dx));
  });
}

void record_add(const char* op, Tensor& out, const Tensor& a, const Tensor& b) {
  autograd::record(op, out, {&a, &b}, [](Tensor dy, Gradients& in) {
    if (in.needed(0)) in.give(0, dy);
    if (in.needed(1)) in.give(1, std::move(dy));
  });
}

Tensor clamped(const char* op, double ceiling, const Tensor& x) {
  check::floating(op, x);
  Tensor y = Tensor::empty(x.shape(), x.options());
  if (y.numel() > 0) kernels(x).relu(x, ceiling, y);
  if (recording({&x})) record_relu(op, ceiling, y, x);
  return y;
}

Tensor clamped_in_place(const char* op, double ceiling, Tensor x) {
  check::floating(op, x);
  const bool recorded = recording({&x});
  autograd::check_in_place(op, x, recorded);
  if (x.numel() > 0) kernels(x).relu(x, ceiling, x);
  autograd::mark_changed(op, x);
  if (recorded) record_relu(op, ceiling, x, x);
  return x;
}

/// b ready to be added to a.
Tensor addend(const char* op, const Tensor& a, const Tensor& b) {
  check::floating(op, a);
  check::same_device(op, {&a, &b});
  check::same_dtype(op, {&a, &b});
  check::same_shape(op, a, b);
  return b.to(a.layout());
}

}  // namespace

Tensor relu(const Tensor& x) { return clamped("relu", kNoCeiling, x); }
Tensor relu_(Tensor x) { return clamped_in_place("relu_", kNoCeiling, std::move(x)); }
Tensor relu6(const Tensor& x) { return clamped("relu6", 6, x); }
Tensor ops::clamp_(Tensor x, double ceiling) { return clamped_in_place("relu_", ceiling, std::move(x)); }
Tensor relu6_(Tensor x) { return clamped_in_place("relu6_", 6, std::move(x)); }

Tensor add(const Tensor& a, const Tensor& b) {
  const Tensor other = addend("add", a, b);
  Tensor out = Tensor::empty(a.shape(), a.options());
  if (out.numel() > 0) kernels(a).add(a, other, out);
  if (recording({&a, &other})) record_add("add", out, a, other);
  return out;
}

Tensor add_(Tensor a, const Tensor& b) {
  const Tensor other = addend("add_", a, b);
  const bool recorded = recording({&a, &other});
  check::no_partial_overlap("add_", a, other);
  if (recorded && a.impl() != other.impl() && a.raw_data() == other.raw_data() && a.numel() > 0) {
    throw AutogradError(
        fmt::format("add_: {} would be added to itself under another name, which loses its history", a.str()),
        "pass the same tensor twice, or clone() one");
  }
  autograd::check_in_place("add_", a, recorded);
  if (a.numel() > 0) kernels(a).add(a, other, a);
  autograd::mark_changed("add_", a);
  if (recorded) record_add("add_", a, a, other);
  return a;
}

Tensor mul(const Tensor& x, double factor) {
  check::floating("mul", x);
  Tensor y = Tensor::empty(x.shape(), x.options());
  if (y.numel() > 0) kernels(x).scale(x, factor, y);
  if (recording({&x})) {
    autograd::record("mul", y, {&x}, [factor](Tensor dy, Gradients& in) {
      Tensor dx = is_exclusive(dy) ? dy : Tensor::empty(dy.shape(), dy.options());
      if (dx.numel() > 0) kernels(dy).scale(dy, factor, dx);
      dy = {};
      in.give(0, std::move(dx));
    });
  }
  return y;
}

Tensor dropout(const Tensor& x, double p, bool training) {
  check::floating("dropout", x);
  if (!(p >= 0 && p <= 1)) throw UsageError(fmt::format("dropout: probability {} is not in [0, 1]", p));
  if (!training || p == 0) return x;
  const PhiloxKey key = default_generator().reserve(x.numel());
  Tensor y = Tensor::empty(x.shape(), x.options());
  const Tensor advance = RandomAdvanceScope::current();
  if (y.numel() > 0) kernels(x).dropout(x, p, key, advance, y);
  if (recording({&x})) {
    autograd::record("dropout", y, {&x}, [p, key, advance](Tensor dy, Gradients& in) {
      Tensor dx = Tensor::empty(dy.shape(), dy.options());
      if (dx.numel() > 0) kernels(dy).dropout(dy, p, key, advance, dx);
      in.give(0, std::move(dx));
    });
  }
  return y;
}

Tensor sum(const Tensor& x) {
  check::floating("sum", x);
  Tensor y = Tensor::empty({}, x.options());
  if (x.numel() > 0) {
    kernels(x).sum(x, y);
  } else {
    y.zero_();
  }
  if (recording({&x})) {
    autograd::record("sum", y, {&x}, [shape = x.shape(), options = x.options()](Tensor dy, Gradients& in) {
      Tensor dx = Tensor::empty(shape, options);
      if (dx.numel() > 0) kernels(dy).broadcast(dy, dx);
      in.give(0, std::move(dx));
    });
  }
  return y;
}

Tensor mean(const Tensor& x) {
  // Of no elements the mean is 0/0, as in PyTorch.
  return mul(sum(x), x.numel() > 0 ? 1.0 / static_cast<double>(x.numel()) : std::numeric_limits<double>::quiet_NaN());
}

Tensor non_finite_count(const Tensor& x) {
  check::floating("non_finite_count", x);
  if (x.numel() == 0) return Tensor::zeros({}, {DType::i64, x.device()});
  Tensor out = Tensor::empty({}, {DType::i64, x.device()});
  kernels(x).non_finite_count(x, out);
  return out;
}

void ops::normalize_images_into(const Tensor& out, const Tensor& images, const Tensor& mean, const Tensor& stddev,
                                const Tensor& windows) {
  constexpr const char* kOp = "normalize_images";
  check::rank(kOp, "images", images, 4);
  check::dtype(kOp, "images", images, DType::u8);
  check::dtype(kOp, "mean", mean, DType::f32);
  check::dtype(kOp, "stddev", stddev, DType::f32);
  check::same_device(kOp, {&images, &mean, &stddev, &windows, &out});
  check::shape_if_defined(kOp, "mean", mean, {images.size(1)});
  check::shape_if_defined(kOp, "stddev", stddev, {images.size(1)});
  if (windows.defined()) check::dtype(kOp, "windows", windows, DType::i32);
  check::shape_if_defined(kOp, "windows", windows, {images.size(0), 3});
  check::same_shape(kOp, out, images);
  if (!is_floating(out.dtype())) {
    throw DtypeError(fmt::format("{}: the result cannot be {}", kOp, name_of(out.dtype())), "ask for a floating dtype");
  }
  if (out.layout() != images.layout()) {
    throw ShapeError(fmt::format("{}: {} and the result {} differ in layout", kOp, images.str(), out.str()));
  }
  if (out.numel() > 0) kernels(images).normalize_images(images, mean, stddev, windows, out);
  autograd::mark_changed(kOp, out);
}

Tensor normalize_images(const Tensor& images, const Tensor& mean, const Tensor& stddev,
                        const NormalizeOptions& options) {
  Tensor out = Tensor::empty(images.shape(), {options.dtype, images.device(), images.layout()});
  ops::normalize_images_into(out, images, mean, stddev, options.windows);
  return out;
}

}  // namespace cuttle
