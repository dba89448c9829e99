#pragma once
#include "cuttle/tensor.hpp"

/// A parameter of f32 may have a copy in f16 or bf16, which mixed precision computes with. It is made when first
/// needed and rewritten by the optimizer together with the parameter; any other change of the parameter outdates it.
namespace cuttle::autograd {

/// t in `dtype`. Of a leaf this is its copy, without history and brought up to date if the leaf has changed: record the
/// leaf itself as the input, and deliver gradients of `dtype`. Of a result it is t.to(dtype), differentiable.
Tensor in_dtype(const Tensor& t, DType dtype);

/// The f16 or bf16 copy of a parameter that ops computed with and that still equals it; undefined if there is none.
Tensor current_copy(const Tensor& p);
/// After the optimizer rewrote both, and counted the parameter's change.
void copy_rewritten(const Tensor& p);

}  // namespace cuttle::autograd
