#pragma once
#include "cuda/runtime/context.hpp"
#include "cuttle/dtype.hpp"

namespace cuttle::cuda {

/// A row-major matrix, or `batch` of them at a constant stride (in elements).
struct Matrix {
  const void* data;
  DType dtype;
  std::int64_t row_stride;
  bool transposed = false;  ///< stands for its transpose
  std::int64_t batch_stride = 0;
};

/// out[rows, columns] = a[rows, inner] b[inner, columns] + beta * out, accumulated in f32; out may be f32 beside 16-bit
/// inputs. f32 is rounded to TF32 only where `tf32`. Throws ShapeError where a size is 2^31 or more.
void gemm(Context& context, std::int64_t rows, std::int64_t columns, std::int64_t inner, const Matrix& a,
          const Matrix& b, const Matrix& out, float beta, bool tf32, std::int64_t batch = 1);

cudaDataType_t cuda_type(DType dtype);  ///< DtypeError unless f32, f16 or bf16
cublasComputeType_t compute_type(DType dtype, bool tf32);
int blas_size(std::int64_t size);  ///< ShapeError from 2^31 on

}  // namespace cuttle::cuda
