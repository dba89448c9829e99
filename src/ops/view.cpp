#include <fmt/format.h>
#include <fmt/ranges.h>

#include <span>
#include <vector>

#include "autograd/node.hpp"
#include "kernels.hpp"
#include "ops/check.hpp"

namespace cuttle {

using autograd::Gradients;

namespace {

Tensor retagged(const Tensor& x, const Shape& shape, Layout layout) {
  Tensor view = make_tensor(x.impl()->storage, x.impl()->offset, shape, x.dtype(), layout);
  view.impl()->view_of = x.impl()->view_of;
  return view;
}

/// The same elements in logical order under another shape and layout, without history: a view where the order in
/// memory allows it.
Tensor reshaped(const Tensor& x, const Shape& shape, Layout layout) {
  NoGrad no_grad;
  Tensor rows = is_row_major(x) ? x.detach() : x.to(Layout::nchw);
  Tensor out = retagged(rows, shape, shape.rank() == 4 ? Layout::nchw : layout);
  return shape.rank() == 4 ? out.to(layout) : out;
}

}  // namespace

Tensor Tensor::reshape(std::initializer_list<std::int64_t> sizes) const {
  std::vector<std::int64_t> resolved(sizes);
  std::int64_t known = 1;
  bool overflow = false;
  std::int64_t* open = nullptr;
  for (std::int64_t& size : resolved) {
    if (size == -1 && !open) {
      open = &size;
    } else {
      overflow |= __builtin_mul_overflow(known, size, &known);
    }
  }
  if (open) {
    if (overflow || known <= 0 || numel() % known != 0) {
      throw ShapeError(fmt::format("reshape: no size for -1 makes [{}] hold the {} elements of {}",
                                   fmt::join(sizes, ","), numel(), str()));
    }
    *open = numel() / known;
  }
  return reshape(Shape(std::span<const std::int64_t>(resolved)));
}

Tensor Tensor::reshape(const Shape& shape) const {
  if (numel() != shape.numel()) {
    throw ShapeError(
        fmt::format("reshape: {} has {} elements, shape {} has {}", str(), numel(), shape.str(), shape.numel()));
  }
  if (shape == this->shape()) return *this;
  Tensor out = reshaped(*this, shape, layout());
  if (out.impl()->storage == impl_->storage) out.impl()->view_of = autograd::view_kind(*this);
  if (autograd::recording({this})) {
    autograd::record("reshape", out, {this}, [from = this->shape(), layout = layout()](Tensor g, Gradients& in) {
      in.give(0, reshaped(g, from, layout));
    });
  }
  return out;
}

Tensor Tensor::slice(std::int64_t begin, std::int64_t end) const {
  if (rank() == 0 || begin < 0 || end < begin || end > size(0)) {
    throw ShapeError(fmt::format("slice: rows [{}, {}) of {}", begin, end, str()));
  }
  Shape shape = this->shape();
  shape[0] = end - begin;
  const std::int64_t row_bytes = size(0) == 0 ? 0 : static_cast<std::int64_t>(nbytes()) / size(0);
  Tensor out = make_tensor(impl_->storage, impl_->offset + static_cast<std::size_t>(begin * row_bytes), shape, dtype(),
                           layout());
  out.impl()->view_of = autograd::view_kind(*this);
  if (autograd::recording({this})) {
    autograd::record("slice", out, {this},
                     [begin, end, from = this->shape(), options = options()](Tensor g, Gradients& in) {
                       Tensor dx = zeros(from, options);
                       dx.slice(begin, end).copy_(g);
                       in.give(0, std::move(dx));
                     });
  }
  return out;
}

Tensor flatten(const Tensor& x, int start) {
  if (start < 0 || start >= std::max(x.rank(), 1)) {
    throw ShapeError(fmt::format("flatten: {} has no dimension {}", x.str(), start));
  }
  const std::span<const std::int64_t> sizes(x.shape().begin(), x.shape().end());
  std::vector<std::int64_t> flat(sizes.begin(), sizes.begin() + start);
  flat.push_back(Shape(sizes.subspan(static_cast<std::size_t>(start))).numel());
  return x.reshape(Shape(std::span<const std::int64_t>(flat)));
}

}  // namespace cuttle
