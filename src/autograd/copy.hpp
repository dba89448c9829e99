#pragma once
#include "cuttle/tensor.hpp"

/// Ops compute in the dtype of their activations: an f32 parameter is used through a copy of 16 bits, which is kept
/// beside it and which optimizers rewrite together with it.
namespace cuttle::autograd {

/// t in `dtype`. Of a leaf this is its copy, without history and brought up to date if the leaf has changed: record the
/// leaf itself as the input, and deliver gradients of `dtype`. Of a result it is t.to(dtype), differentiable.
Tensor in_dtype(const Tensor& t, DType dtype);

/// The copy of a leaf if it holds the leaf's present values; undefined otherwise.
Tensor current_copy(const Tensor& leaf);
/// After a kernel wrote the leaf and its current copy together, and the leaf's change was counted.
void copy_rewritten(const char* op, const Tensor& leaf);

}  // namespace cuttle::autograd
