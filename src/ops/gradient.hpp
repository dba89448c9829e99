#pragma once
#include <utility>

#include "autograd/node.hpp"

namespace cuttle::autograd {

/// Delivers a parameter's gradient from a kernel that can add to what is there: calls kernel(gradient, accumulate)
/// with the gradient accumulated so far, or with a fresh one like `shape` and `options`. Nothing is done if nobody
/// wants it; of an empty batch it is zero, and the kernel is not called.
template <class Kernel>
void give_accumulating(Gradients& inputs, std::size_t i, const Shape& shape, TensorOptions options, bool empty_batch,
                       Kernel&& kernel) {
  if (!inputs.needed(i)) return;
  if (empty_batch) return inputs.give(i, Tensor::zeros(shape, options));
  const Tensor so_far = inputs.accumulated(i);
  if (so_far.defined() && so_far.dtype() == options.dtype && so_far.layout() == options.layout) {
    kernel(so_far, true);
    mark_changed("backward", so_far);
    return;
  }
  Tensor fresh = Tensor::empty(shape, options);
  kernel(fresh, false);
  inputs.give(i, std::move(fresh));
}

}  // namespace cuttle::autograd
