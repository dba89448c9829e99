#pragma once
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cudnn.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

/// cuDNN and cuBLAS are opened when the first of their functions is called, not when the program starts: a machine
/// without them still runs it, and is told what is missing. Inside cuttle::cuda the names of their functions are the
/// objects below, called like the functions. A function that is not listed fails to link: add it to its list.
namespace cuttle::cuda {

enum class Library : std::uint8_t { cudnn, cublas, cublas_lt };
/// Opens the library and finds every listed function. Throws CudnnError or DeviceError saying what is missing.
void load(Library library);
/// The file that an opened library was read from; empty if it is not open.
std::string file_of(Library library);
/// "9.19.0" of what cudnnGetVersion() returns.
std::string cudnn_version_text(std::size_t version);

template <class Signature, class Name> struct LibraryFunction;
template <class R, class... Args, class Name> struct LibraryFunction<R(Args...), Name> {
  using Pointer = R (*)(Args...);
  R operator()(Args... args) const { return target.load(std::memory_order_relaxed)(args...); }
  static R load_and_call(Args... args) {
    load(Name::kLibrary);
    return target.load(std::memory_order_relaxed)(args...);
  }
  static inline std::atomic<Pointer> target = load_and_call;
};

// X(function, type of function)
#define CUTTLE_CUDNN_FUNCTIONS(X)                                 \
  CUTTLE_PLAIN(X, cudnnGetVersion)                                \
  CUTTLE_PLAIN(X, cudnnGetErrorString)                            \
  CUTTLE_PLAIN(X, cudnnGetLastErrorString)                        \
  CUTTLE_PLAIN(X, cudnnCreate)                                    \
  CUTTLE_PLAIN(X, cudnnDestroy)                                   \
  CUTTLE_PLAIN(X, cudnnSetStream)                                 \
  CUTTLE_PLAIN(X, cudnnBackendCreateDescriptor)                   \
  CUTTLE_PLAIN(X, cudnnBackendDestroyDescriptor)                  \
  CUTTLE_PLAIN(X, cudnnBackendSetAttribute)                       \
  CUTTLE_PLAIN(X, cudnnBackendGetAttribute)                       \
  CUTTLE_PLAIN(X, cudnnBackendFinalize)                           \
  CUTTLE_PLAIN(X, cudnnBackendExecute)                            \
  CUTTLE_PLAIN(X, cudnnCreateTensorDescriptor)                    \
  CUTTLE_PLAIN(X, cudnnDestroyTensorDescriptor)                   \
  CUTTLE_PLAIN(X, cudnnSetTensor4dDescriptor)                     \
  CUTTLE_PLAIN(X, cudnnSetTensor4dDescriptorEx)                   \
  CUTTLE_PLAIN(X, cudnnCreateFilterDescriptor)                    \
  CUTTLE_PLAIN(X, cudnnDestroyFilterDescriptor)                   \
  CUTTLE_PLAIN(X, cudnnSetFilter4dDescriptor)                     \
  CUTTLE_PLAIN(X, cudnnCreateConvolutionDescriptor)               \
  CUTTLE_PLAIN(X, cudnnDestroyConvolutionDescriptor)              \
  CUTTLE_PLAIN(X, cudnnSetConvolution2dDescriptor)                \
  CUTTLE_PLAIN(X, cudnnSetConvolutionGroupCount)                  \
  CUTTLE_PLAIN(X, cudnnSetConvolutionMathType)                    \
  CUTTLE_PLAIN(X, cudnnGetConvolutionForwardAlgorithm_v7)         \
  CUTTLE_PLAIN(X, cudnnGetConvolutionBackwardDataAlgorithm_v7)    \
  CUTTLE_PLAIN(X, cudnnGetConvolutionBackwardFilterAlgorithm_v7)  \
  CUTTLE_PLAIN(X, cudnnGetConvolutionForwardWorkspaceSize)        \
  CUTTLE_PLAIN(X, cudnnGetConvolutionBackwardDataWorkspaceSize)   \
  CUTTLE_PLAIN(X, cudnnGetConvolutionBackwardFilterWorkspaceSize) \
  CUTTLE_PLAIN(X, cudnnConvolutionForward)                        \
  CUTTLE_PLAIN(X, cudnnConvolutionBackwardData)                   \
  CUTTLE_PLAIN(X, cudnnConvolutionBackwardFilter)

#define CUTTLE_CUBLAS_FUNCTIONS(X)       \
  CUTTLE_PLAIN(X, cublasCreate)          \
  CUTTLE_PLAIN(X, cublasDestroy)         \
  CUTTLE_PLAIN(X, cublasGetProperty)     \
  CUTTLE_PLAIN(X, cublasGetStatusString) \
  CUTTLE_PLAIN(X, cublasSetStream)       \
  CUTTLE_PLAIN(X, cublasSetWorkspace)    \
  CUTTLE_PLAIN(X, cublasSetMathMode)     \
  X(cublasGemmEx, CublasGemmEx)          \
  X(cublasGemmStridedBatchedEx, CublasGemmStridedBatchedEx)

#define CUTTLE_CUBLAS_LT_FUNCTIONS(X)                   \
  CUTTLE_PLAIN(X, cublasLtMatmul)                       \
  CUTTLE_PLAIN(X, cublasLtMatmulAlgoGetHeuristic)       \
  CUTTLE_PLAIN(X, cublasLtMatmulDescCreate)             \
  CUTTLE_PLAIN(X, cublasLtMatmulDescDestroy)            \
  CUTTLE_PLAIN(X, cublasLtMatmulDescSetAttribute)       \
  CUTTLE_PLAIN(X, cublasLtMatmulPreferenceCreate)       \
  CUTTLE_PLAIN(X, cublasLtMatmulPreferenceDestroy)      \
  CUTTLE_PLAIN(X, cublasLtMatmulPreferenceSetAttribute) \
  CUTTLE_PLAIN(X, cublasLtMatrixLayoutCreate)           \
  CUTTLE_PLAIN(X, cublasLtMatrixLayoutDestroy)          \
  CUTTLE_PLAIN(X, cublasLtMatrixLayoutSetAttribute)

// C++ has two functions of each of these names: the ones meant are those that take a cublasComputeType_t.
using CublasGemmEx = cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k,
                                    const void* alpha, const void* a, cudaDataType, int lda, const void* b,
                                    cudaDataType, int ldb, const void* beta, void* c, cudaDataType, int ldc,
                                    cublasComputeType_t, cublasGemmAlgo_t);
using CublasGemmStridedBatchedEx = cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n,
                                                  int k, const void* alpha, const void* a, cudaDataType, int lda,
                                                  long long stride_a, const void* b, cudaDataType, int ldb,
                                                  long long stride_b, const void* beta, void* c, cudaDataType, int ldc,
                                                  long long stride_c, int count, cublasComputeType_t, cublasGemmAlgo_t);

#define CUTTLE_PLAIN(X, name) X(name, decltype(::name))
#define CUTTLE_DECLARE(name, type, library)               \
  struct name##Name {                                     \
    static constexpr Library kLibrary = Library::library; \
  };                                                      \
  inline constexpr LibraryFunction<type, name##Name> name{};
#define CUTTLE_CUDNN_FUNCTION(name, type) CUTTLE_DECLARE(name, type, cudnn)
#define CUTTLE_CUBLAS_FUNCTION(name, type) CUTTLE_DECLARE(name, type, cublas)
#define CUTTLE_CUBLAS_LT_FUNCTION(name, type) CUTTLE_DECLARE(name, type, cublas_lt)
CUTTLE_CUDNN_FUNCTIONS(CUTTLE_CUDNN_FUNCTION)
CUTTLE_CUBLAS_FUNCTIONS(CUTTLE_CUBLAS_FUNCTION)
CUTTLE_CUBLAS_LT_FUNCTIONS(CUTTLE_CUBLAS_LT_FUNCTION)

}  // namespace cuttle::cuda
