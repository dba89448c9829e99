#include <fmt/format.h>

#include "autograd/node.hpp"
#include "kernels.hpp"
#include "ops/check.hpp"

namespace cuttle {

using autograd::Gradients;

namespace {

/// Between tensors of one dtype and order, wherever they are.
void copy_bytes(const Tensor& from, const Tensor& to) {
  if (from.raw_data() == to.raw_data()) return;
  const DeviceKind kind = from.device().is_cuda() ? DeviceKind::cuda : to.device().kind;
  backend(kind).copy(to.raw_mutable_data(), to.device(), from.raw_data(), from.device(), to.nbytes());
}

}  // namespace

Tensor Tensor::to(Device device) const {
  if (device == this->device()) return *this;
  Tensor out = empty(shape(), {dtype(), device, layout()});
  if (numel() > 0) copy_bytes(*this, out);
  if (autograd::recording({this})) {
    const Device from = this->device();
    autograd::record("to(device)", out, {this}, [from](Tensor g, Gradients& in) { in.give(0, g.to(from)); });
  }
  return out;
}

Tensor Tensor::to(DType dtype) const {
  if (dtype == this->dtype()) return *this;
  Tensor out = empty(shape(), {dtype, device(), layout()});
  if (numel() > 0) kernels(*this).convert(*this, out);
  if (is_floating(dtype) && autograd::recording({this})) {
    const DType from = this->dtype();
    autograd::record("to(dtype)", out, {this}, [from](Tensor g, Gradients& in) { in.give(0, g.to(from)); });
  }
  return out;
}

Tensor Tensor::to(Layout layout) const {
  if (layout == this->layout()) return *this;
  Tensor out;
  if (shape().is_layout_free()) {  // only the tag changes
    out = make_tensor(impl_->storage, impl_->offset, shape(), dtype(), layout);
    out.impl()->view_of = autograd::view_kind(*this);
  } else {
    out = empty(shape(), {dtype(), device(), layout});
    if (numel() > 0) kernels(*this).convert(*this, out);
  }
  if (autograd::recording({this})) {
    const Layout from = this->layout();
    autograd::record("to(layout)", out, {this}, [from](Tensor g, Gradients& in) { in.give(0, g.to(from)); });
  }
  return out;
}

Tensor Tensor::clone() const {
  Tensor out = empty(shape(), options());
  if (numel() > 0) copy_bytes(*this, out);
  if (autograd::recording({this})) {
    autograd::record("clone", out, {this}, [](Tensor g, Gradients& in) { in.give(0, std::move(g)); });
  }
  return out;
}

namespace {

void check_unrecorded_change(const char* op, const Tensor& t) {
  if (grad_enabled() && t.requires_grad()) {
    throw AutogradError(fmt::format("'{}' would change {} in place, which needs a gradient", op, t.str()),
                        "do it under NoGrad");
  }
}

}  // namespace

Tensor& Tensor::copy_(const Tensor& source) {
  check::same_shape("copy_", *this, source);
  check_unrecorded_change("copy_", *this);
  check::no_partial_overlap("copy_", *this, source);
  if (grad_enabled() && source.requires_grad()) {
    throw AutogradError(fmt::format("'copy_' would lose the history of {}, which needs a gradient", source.str()),
                        "detach() it, do it under NoGrad, or use add_ on zeros");
  }
  NoGrad no_grad;
  const bool same_order = source.layout() == layout() || shape().is_layout_free();
  if (numel() > 0 && source.dtype() == dtype() && same_order) {
    copy_bytes(source, *this);
  } else if (numel() > 0) {
    kernels(*this).convert(source.to(device()), *this);
  }
  autograd::mark_changed("copy_", *this);
  return *this;
}

Tensor& Tensor::fill_(double value) {
  check_unrecorded_change("fill_", *this);
  if (numel() > 0) kernels(*this).fill(*this, value);
  autograd::mark_changed("fill_", *this);
  return *this;
}

}  // namespace cuttle
