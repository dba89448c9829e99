#pragma once
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <cudnn.h>

#include <cstddef>
#include <memory>

#include "cuttle/memory.hpp"
#include "cuttle/tensor.hpp"
#include "cuda/handle.hpp"

namespace cuttle::cuda {

using StreamHandle = Handle<cudaStream_t, cudaStreamDestroy>;
using EventHandle = Handle<cudaEvent_t, cudaEventDestroy>;
using CudnnHandle = Handle<cudnnHandle_t, cudnnDestroy>;
using CublasHandle = Handle<cublasHandle_t, cublasDestroy>;

/// What one device's work needs: made on first use, never destroyed (tensors in static storage outlive everything).
/// One compute stream, so one workspace serves every op: its size is the largest request, not the sum.
class Context {
 public:
  explicit Context(int index);

  int index() const { return index_; }
  int multiprocessors() const { return multiprocessors_; }
  cudaStream_t stream() const { return compute_.get(); }
  cudaStream_t copy_stream() const { return copy_.get(); }
  cudnnHandle_t cudnn();
  cublasHandle_t cublas();
  /// At least `bytes` bytes that stay valid for work queued on the compute stream before the next call; nullptr for 0.
  void* workspace(std::size_t bytes);

 private:
  int index_;
  int multiprocessors_ = 0;
  StreamHandle compute_, copy_;
  CudnnHandle cudnn_;
  CublasHandle cublas_;
  Tensor cublas_workspace_, workspace_;
};

/// The context of a device, which becomes the current one of this thread.
Context& context(int index);
inline Context& context(const Tensor& t) { return context(t.device().index); }

}  // namespace cuttle::cuda
