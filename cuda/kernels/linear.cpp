#include <cublasLt.h>
#include <fmt/format.h>

#include <array>
#include <limits>
#include <map>
#include <mutex>
#include <optional>

#include "cuda/check.hpp"
#include "cuda/kernels/bias.hpp"
#include "cuda/kernels/gemm.hpp"
#include "cuda/register.hpp"
#include "cuttle/matmul.hpp"

namespace cuttle::cuda {

namespace {

Matrix matrix(const Tensor& t, bool transposed = false) { return {t.raw_data(), t.dtype(), t.size(1), transposed}; }

using Description = Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using LayoutHandle = Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

constexpr std::size_t kMaxWorkspace = std::size_t{32} << 20;  // what NVIDIA recommends on Hopper

cublasLtEpilogue_t epilogue_of(bool bias, bool relu) {
  if (bias) return relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS;
  return relu ? CUBLASLT_EPILOGUE_RELU : CUBLASLT_EPILOGUE_DEFAULT;
}

/// y[M,O] = x[M,I] w[O,I]^T (+ bias), clamped if `relu`, as cuBLASLt sees it, column-major: y^T[O,M] = w x^T, the bias
/// along the rows of y^T.
class FusedProduct {
 public:
  FusedProduct(const Tensor& x, const Tensor& w, const Tensor& bias, bool relu, bool tf32) {
    const cudaDataType_t type = cuda_type(x.dtype());
    cublasLtMatmulDesc_t description = nullptr;
    CUTTLE_CUBLAS(cublasLtMatmulDescCreate(&description, compute_type(x.dtype(), tf32), CUDA_R_32F));
    description_.reset(description);
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(bias.defined(), relu));
    if (bias.defined()) {
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.raw_data());
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type);
    }
    w_ = layout(type, w.size(1), w.size(0));
    x_ = layout(type, x.size(1), x.size(0));
    y_ = layout(type, w.size(0), x.size(0));
  }

  /// The first algorithm that cuBLASLt proposes for pointers aligned to 16 bytes, or nothing.
  std::optional<cublasLtMatmulHeuristicResult_t> propose(cublasLtHandle_t handle) const {
    cublasLtMatmulPreference_t preference = nullptr;
    CUTTLE_CUBLAS(cublasLtMatmulPreferenceCreate(&preference));
    const Preference owner(preference);
    CUTTLE_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                       &kMaxWorkspace, sizeof kMaxWorkspace));
    // By default it assumes the 256 bytes of cudaMalloc.
    const std::uint32_t alignment = 16;
    for (const auto name : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                            CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      CUTTLE_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference, name, &alignment, sizeof alignment));
    }
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, description_.get(), w_.get(), x_.get(),
                                                                 y_.get(), y_.get(), preference, 1, &result, &found);
    if (status != CUBLAS_STATUS_SUCCESS || found == 0 || result.state != CUBLAS_STATUS_SUCCESS) return std::nullopt;
    return result;
  }

  void run(Context& context, cublasLtHandle_t handle, const cublasLtMatmulHeuristicResult_t& algorithm, const Tensor& x,
           const Tensor& w, const Tensor& y) const {
    const float one = 1, zero = 0;
    Tensor workspace;
    if (algorithm.workspaceSize > 0) {
      workspace = Tensor::empty({static_cast<std::int64_t>(algorithm.workspaceSize)}, {DType::u8, y.device()});
    }
    CUTTLE_CUBLAS(cublasLtMatmul(handle, description_.get(), &one, w.raw_data(), w_.get(), x.raw_data(), x_.get(),
                                 &zero, y.raw_data(), y_.get(), y.raw_mutable_data(), y_.get(), &algorithm.algo,
                                 workspace.defined() ? workspace.raw_mutable_data() : nullptr, algorithm.workspaceSize,
                                 context.stream()));
  }

 private:
  template <class T> void set(cublasLtMatmulDescAttributes_t name, const T& value) {
    CUTTLE_CUBLAS(cublasLtMatmulDescSetAttribute(description_.get(), name, &value, sizeof value));
  }
  static LayoutHandle layout(cudaDataType_t type, std::int64_t rows, std::int64_t columns) {
    cublasLtMatrixLayout_t made = nullptr;
    CUTTLE_CUBLAS(cublasLtMatrixLayoutCreate(&made, type, static_cast<std::uint64_t>(rows),
                                             static_cast<std::uint64_t>(columns), rows));
    return LayoutHandle(made);
  }

  Description description_;
  LayoutHandle w_, x_, y_;
};

/// Undefined tensors too.
bool is_aligned(const Tensor& t) { return !t.defined() || reinterpret_cast<std::uintptr_t>(t.raw_data()) % 16 == 0; }

/// The product and what follows it in one call; false if cuBLASLt has no kernel for it.
bool fused_linear(const Tensor& x, const Tensor& w, const Tensor& bias, bool relu, const Tensor& y) {
  if (!is_aligned(x) || !is_aligned(w) || !is_aligned(bias) || !is_aligned(y)) return false;
  static std::mutex mutex;
  static auto& algorithms = *new std::map<std::array<std::int64_t, 7>, std::optional<cublasLtMatmulHeuristicResult_t>>;
  Context& c = context(x);
  const auto handle = reinterpret_cast<cublasLtHandle_t>(c.cublas());  // documented: a cuBLAS handle is an Lt handle
  const bool tf32 = matmul_settings().tf32;
  const FusedProduct product(x, w, bias, relu, tf32);
  std::optional<cublasLtMatmulHeuristicResult_t> algorithm;
  {
    const std::lock_guard lock(mutex);
    const auto type = static_cast<std::int64_t>(x.dtype());
    const auto epilogue = static_cast<std::int64_t>(epilogue_of(bias.defined(), relu));
    const std::array<std::int64_t, 7> key{c.index(), type, epilogue, tf32, x.size(0), x.size(1), w.size(0)};
    const auto [found, is_new] = algorithms.try_emplace(key);
    if (is_new) found->second = product.propose(handle);
    algorithm = found->second;
  }
  if (algorithm) product.run(c, handle, *algorithm, x, w, y);
  return algorithm.has_value();
}

void linear(const Tensor& x, const Tensor& w, const Tensor& bias, bool relu, const Tensor& y) {
  blas_size(x.size(0));
  if ((bias.defined() || relu) && fused_linear(x, w, bias, relu, y)) return;
  gemm(context(x), x.size(0), w.size(0), x.size(1), matrix(x), matrix(w, true), matrix(y), 0, matmul_settings().tf32);
  if (bias.defined()) {
    add_bias(bias, y, relu);
  } else if (relu) {
    kernels(y).relu(y, std::numeric_limits<double>::infinity(), y);
  }
}

void linear_backward_data(const Tensor& dy, const Tensor& w, const Tensor& dx) {
  gemm(context(dy), dy.size(0), w.size(1), w.size(0), matrix(dy), matrix(w), matrix(dx), 0, matmul_settings().tf32);
}

void linear_backward_weight(const Tensor& dy, const Tensor& x, const Tensor& dw, bool accumulate) {
  gemm(context(dy), dw.size(0), dw.size(1), dy.size(0), matrix(dy, true), matrix(x), matrix(dw), accumulate ? 1.0f : 0,
       matmul_settings().tf32);
}

}  // namespace

void register_linear(Kernels& k) {
  k.linear = linear;
  k.linear_backward_data = linear_backward_data;
  k.linear_backward_weight = linear_backward_weight;
}

}  // namespace cuttle::cuda
