#pragma once
#include <cuda_runtime.h>

#include <memory>
#include <type_traits>

#include "cuda/libraries.hpp"

namespace cuttle::cuda {

/// Move-only owner of a library's opaque pointer.
template <class Pointer, auto Destroy> struct HandleDeleter {
  using pointer = Pointer;
  void operator()(Pointer p) const noexcept { Destroy(p); }  // nothing useful can be done about a failing destroy
};
template <class Pointer, auto Destroy>
using Handle = std::unique_ptr<std::remove_pointer_t<Pointer>, HandleDeleter<Pointer, Destroy>>;

using StreamHandle = Handle<cudaStream_t, cudaStreamDestroy>;
using EventHandle = Handle<cudaEvent_t, cudaEventDestroy>;
using CudnnHandle = Handle<cudnnHandle_t, cudnnDestroy>;
using CublasHandle = Handle<cublasHandle_t, cublasDestroy>;

}  // namespace cuttle::cuda
