#include "autograd/copy.hpp"

#include "autograd/node.hpp"
#include "kernels.hpp"

namespace cuttle::autograd {

Tensor in_dtype(const Tensor& t, DType dtype) {
  if (t.dtype() == dtype) return t;
  if (!t.is_leaf()) return t.to(dtype);
  TensorImpl& leaf = *t.impl();
  const TensorOptions wanted{dtype, t.device(), t.layout()};
  const bool fits = leaf.copy.defined() && leaf.copy.dtype() == dtype && leaf.copy.device() == wanted.device &&
                    leaf.copy.layout() == wanted.layout;
  if (fits && leaf.copy_version == t.version()) return leaf.copy;
  // In place where it can be: a recorded step goes on reading the copy at its address.
  if (!fits) leaf.copy = Tensor::empty(t.shape(), wanted);
  if (t.numel() > 0) kernels(t).convert(t.detach(), leaf.copy);
  mark_changed("in_dtype", leaf.copy);
  leaf.copy_version = t.version();
  return leaf.copy;
}

Tensor current_copy(const Tensor& leaf) {
  const TensorImpl& impl = *leaf.impl();
  return impl.copy.defined() && impl.copy_version == leaf.version() ? impl.copy : Tensor();
}

void copy_rewritten(const char* op, const Tensor& leaf) {
  mark_changed(op, leaf.impl()->copy);
  leaf.impl()->copy_version = leaf.version();
}

}  // namespace cuttle::autograd
