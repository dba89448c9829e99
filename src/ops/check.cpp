#include "ops/check.hpp"

#include <fmt/format.h>

#include <limits>

#include "cuttle/error.hpp"

namespace cuttle::check {

void rank(const char* op, std::string_view what, const Tensor& t, int rank) {
  if (t.rank() != rank) {
    throw ShapeError(fmt::format("{}: {} must have {} dimensions, but is {}", op, what, rank, t.str()));
  }
}

void floating(const char* op, const Tensor& t) {
  if (!is_floating(t.dtype())) {
    throw DtypeError(fmt::format("{}: {} is not of a floating dtype", op, t.str()), "convert it with .to(DType::f32)");
  }
}

void dtype(const char* op, std::string_view what, const Tensor& t, DType wanted) {
  if (t.dtype() != wanted) {
    throw DtypeError(fmt::format("{}: {} must be {}, but is {}", op, what, name_of(wanted), t.str()),
                     fmt::format("convert it with .to(DType::{})", name_of(wanted)));
  }
}

void same_device(const char* op, std::initializer_list<const Tensor*> tensors) {
  const Tensor& first = **tensors.begin();
  for (const Tensor* t : tensors) {
    if (t->defined() && t->device() != first.device()) {
      throw DeviceError(fmt::format("{}: {} and {} are on different devices", op, first.str(), t->str()),
                        "move one with .to(device), or the whole model with Module::to");
    }
  }
}

void same_dtype(const char* op, std::initializer_list<const Tensor*> tensors) {
  const Tensor& first = **tensors.begin();
  for (const Tensor* t : tensors) {
    if (t->defined() && t->dtype() != first.dtype()) {
      throw DtypeError(fmt::format("{}: {} and {} differ in dtype", op, first.str(), t->str()),
                       "convert one with .to(dtype)");
    }
  }
}

void parameters_dtype(const char* op, const Tensor& x, std::initializer_list<const Tensor*> parameters) {
  const bool short_x = x.dtype() == DType::f16 || x.dtype() == DType::bf16;
  for (const Tensor* p : parameters) {
    if (!(short_x && p->defined() && p->dtype() == DType::f32)) same_dtype(op, {&x, p});
  }
}

void same_shape(const char* op, const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape()) {
    throw ShapeError(fmt::format("{}: {} and {} differ in shape", op, a.str(), b.str()), "Cuttle does not broadcast");
  }
}

void no_partial_overlap(const char* op, const Tensor& target, const Tensor& source) {
  if (target.numel() == 0 || source.numel() == 0 || target.device() != source.device()) return;
  const auto* t = static_cast<const char*>(target.raw_data());
  const auto* s = static_cast<const char*>(source.raw_data());
  const bool apart = t + target.nbytes() <= s || s + source.nbytes() <= t;
  if (!apart && (t != s || target.nbytes() != source.nbytes())) {
    throw AutogradError(fmt::format("{}: {} and {} overlap in memory", op, target.str(), source.str()),
                        "clone() the source first");
  }
}

void shape_if_defined(const char* op, std::string_view what, const Tensor& t, const Shape& wanted) {
  if (t.defined() && t.shape() != wanted) {
    throw ShapeError(fmt::format("{}: {} must have shape {}, but is {}", op, what, wanted.str(), t.str()));
  }
}

void sizes_in_range(const char* op, std::string_view what, Size2 value, std::int64_t low) {
  constexpr std::int64_t kHigh = std::numeric_limits<std::int32_t>::max();
  for (const std::int64_t size : {value.h, value.w}) {
    if (size < low || size > kHigh) {
      throw ShapeError(fmt::format("{}: {} is {}x{}, but must lie in [{}, 2^31)", op, what, value.h, value.w, low));
    }
  }
}

std::int64_t window_places(const char* op, std::string_view axis, const Tensor& x, std::int64_t in, std::int64_t kernel,
                           std::int64_t stride, std::int64_t padding, std::int64_t dilation, bool ceil_mode) {
  const std::int64_t span = dilation * (kernel - 1) + 1;
  const std::int64_t room = in + 2 * padding - span;
  if (room < 0) {
    throw ShapeError(fmt::format("{}: kernel {} {} with dilation {} spans {}, but {} has {} + 2*{} = {} in {}", op,
                                 axis, kernel, dilation, span, x.str(), in, padding, in + 2 * padding, axis),
                     "use more padding, a smaller kernel or dilation, or a larger image");
  }
  std::int64_t places = (room + (ceil_mode ? stride - 1 : 0)) / stride + 1;
  // A window that would start in the padding on the right sees no input at all.
  if (ceil_mode && (places - 1) * stride >= in + padding) --places;
  return places;
}

}  // namespace cuttle::check
