#include "autograd/copy.hpp"

#include "autograd/node.hpp"
#include "kernels.hpp"

namespace cuttle::autograd {

Tensor in_dtype(const Tensor& t, DType dtype) {
  if (t.dtype() == dtype) return t;
  if (!t.is_leaf()) return t.to(dtype);
  TensorImpl& leaf = *t.impl();
  const Tensor& copy = leaf.copy;
  const bool fits =
      copy.defined() && copy.dtype() == dtype && copy.device() == t.device() && copy.layout() == t.layout();
  if (fits && leaf.copy_version == t.version()) return copy;
  // In place where it can be: a recorded step goes on reading the copy at its address.
  if (!fits) leaf.copy = Tensor::empty(t.shape(), {dtype, t.device(), t.layout()});
  if (t.numel() > 0) kernels(t).convert(t, leaf.copy);
  mark_changed("in_dtype", leaf.copy);
  leaf.copy_version = t.version();
  return leaf.copy;
}

Tensor current_copy(const Tensor& p) {
  const TensorImpl& impl = *p.impl();
  return impl.copy.defined() && impl.copy_version == impl.storage->version() ? impl.copy : Tensor();
}

void copy_rewritten(const Tensor& p) { p.impl()->copy_version = p.version(); }

}  // namespace cuttle::autograd
