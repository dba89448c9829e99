#pragma once
#include "cuttle/tensor.hpp"

/// A parameter of f32 may have a copy in f16 or bf16, which mixed precision computes with. It is made when first
/// needed and rewritten by the optimizer together with the parameter; any other change of the parameter outdates it.
namespace cuttle::autograd {

/// The f16 or bf16 copy of a parameter that ops computed with and that still equals it; undefined if there is none.
Tensor current_copy(const Tensor& p);
/// After the optimizer rewrote both, and counted the parameter's change.
void copy_rewritten(const Tensor& p);

}  // namespace cuttle::autograd
