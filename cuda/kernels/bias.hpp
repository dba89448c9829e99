#pragma once
#include "cuda/runtime/context.hpp"
#include "cuttle/tensor.hpp"
#include "kernels.hpp"

namespace cuttle::cuda {

/// y += bias[k], k the channel of y[N,K,P,Q] or the column of y[M,K]; then y = max(y, 0) if `relu`.
void add_bias(const Tensor& bias, const Tensor& y, bool relu = false);

/// out[i] = sum over the parts of parts[part * out.numel() + i] (+ out[i] if accumulate), in a fixed order: the second
/// stage of sums that many blocks share. out: f32, f16 or bf16.
void sum_parts(const float* parts, std::int64_t count, const Tensor& out, bool accumulate);

void register_bias(Kernels& k);

}  // namespace cuttle::cuda
