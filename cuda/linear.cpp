#include "cuda/check.hpp"
#include "cuda/context.hpp"
#include "cuda/register.hpp"

namespace cuttle::cuda {

namespace {

cudaDataType_t data_type(const Tensor& t) {
  switch (t.dtype()) {
    case DType::f16: return CUDA_R_16F;
    case DType::bf16: return CUDA_R_16BF;
    case DType::f32: return CUDA_R_32F;
    default: throw DtypeError("linear: no CUDA kernel for " + t.str(), "use f32, f16 or bf16");
  }
}

/// Row-major C[rows, columns] = op(A) op(B) + beta C, accumulated in f32. cuBLAS is column-major, where a row-major
/// matrix is its own transpose: so it computes C^T = op(B)^T op(A)^T.
void multiply(const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Tensor& c, float beta) {
  const auto rows = static_cast<int>(c.size(0)), columns = static_cast<int>(c.size(1));
  const auto inner = static_cast<int>(a.size(transpose_a ? 0 : 1));
  const float one = 1;
  CUTTLE_CUBLAS(cublasGemmEx(context(c).cublas(), transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                             transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N, columns, rows, inner, &one, b.raw_data(),
                             data_type(b), static_cast<int>(b.size(1)), a.raw_data(), data_type(a),
                             static_cast<int>(a.size(1)), &beta, c.raw_mutable_data(), data_type(c), columns,
                             CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

void linear(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y) {
  if (bias.defined()) fill_rows(bias, y);
  multiply(x, false, w, true, y, bias.defined() ? 1.0f : 0.0f);
}

void linear_backward_data(const Tensor& dy, const Tensor& w, const Tensor& dx) {
  multiply(dy, false, w, false, dx, 0);
}

void linear_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& dw, bool accumulate) {
  multiply(dy, true, x, false, dw, accumulate ? 1.0f : 0.0f);
}

}  // namespace

void register_linear(Kernels& k) {
  k.linear = linear;
  k.linear_backward_data = linear_backward_data;
  k.linear_backward_weight = linear_backward_weight;
}

}  // namespace cuttle::cuda
