#include "cuda/kernels/gemm.hpp"

#include <fmt/format.h>

#include <limits>

#include "cuda/check.hpp"
#include "cuttle/error.hpp"

namespace cuttle::cuda {

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::f16: return CUDA_R_16F;
    case DType::bf16: return CUDA_R_16BF;
    case DType::f32: return CUDA_R_32F;
    default: throw DtypeError(fmt::format("no CUDA matrix product of {}", name_of(dtype)), "use f32, f16 or bf16");
  }
}

cublasComputeType_t compute_type(DType dtype, bool tf32) {
  return dtype == DType::f32 && tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

int blas_size(std::int64_t size) {
  if (size > std::numeric_limits<int>::max()) {
    throw ShapeError(fmt::format("a matrix product has a size of {}, and cuBLAS takes less than 2^31", size),
                     "use a smaller batch");
  }
  return static_cast<int>(size);
}

// cuBLAS is column-major, where a row-major matrix is its own transpose: out^T = b^T a^T.
void gemm(Context& context, std::int64_t rows, std::int64_t columns, std::int64_t inner, const Matrix& a,
          const Matrix& b, const Matrix& out, float beta, bool tf32, std::int64_t batch) {
  const float one = 1;
  CUTTLE_CUBLAS(cublasGemmStridedBatchedEx(
      context.cublas(), b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N, a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
      blas_size(columns), blas_size(rows), blas_size(inner), &one, b.data, cuda_type(b.dtype), blas_size(b.row_stride),
      b.batch_stride, a.data, cuda_type(a.dtype), blas_size(a.row_stride), a.batch_stride, &beta,
      const_cast<void*>(out.data), cuda_type(out.dtype), blas_size(out.row_stride), out.batch_stride, blas_size(batch),
      compute_type(a.dtype, tf32), CUBLAS_GEMM_DEFAULT));
}

}  // namespace cuttle::cuda
