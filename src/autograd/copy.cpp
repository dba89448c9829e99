#include "autograd/copy.hpp"

#include "core/tensor_impl.hpp"

namespace cuttle::autograd {

Tensor current_copy(const Tensor& p) {
  const TensorImpl& impl = *p.impl();
  return impl.copy.defined() && impl.copy_version == impl.storage->version() ? impl.copy : Tensor();
}

void copy_rewritten(const Tensor& p) { p.impl()->copy_version = p.version(); }

}  // namespace cuttle::autograd
