#pragma once
#include <cstddef>
#include <cstdint>

#include "cuttle/tensor.hpp"

/// CPU kernels compute in NHWC. A kernel that meets NCHW tensors permutes through scratch copies:
///   const Tensor in = to_nhwc(x), out = nhwc_scratch(y);
///   compute(in, out);
///   from_nhwc(out, y);
/// which costs nothing where x and y are NHWC already.
namespace cuttle::cpu {

/// The tensor itself where it is NHWC, not 4-D or undefined, else a permuted NHWC copy. Any dtype.
Tensor to_nhwc(const Tensor& t);

/// The tensor itself where it is NHWC, not 4-D or undefined, else an NHWC tensor like it with contents undefined.
Tensor nhwc_scratch(const Tensor& like);

/// Permutes `nhwc` into `out` of equal shape and dtype; does nothing where they are one tensor.
void from_nhwc(const Tensor& nhwc, const Tensor& out);

/// `batches` row-major matrices [rows][columns] of elements of 1, 2, 4 or 8 bytes -> [columns][rows] each, from all
/// threads. NCHW -> NHWC is transpose(in, out, size, N, C, H*W); the way back is transpose(in, out, size, N, H*W, C).
void transpose(const void* in, void* out, std::size_t element_size, std::int64_t batches, std::int64_t rows,
               std::int64_t columns);

}  // namespace cuttle::cpu
