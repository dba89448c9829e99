#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <string>

#include "cuda/check.hpp"
#include "cuda/context.hpp"
#include "cuttle/error.hpp"

namespace cuttle::cuda {

/// Calls body(T{}) with the element type of a floating tensor. f64 exists on the CPU only. Arithmetic is done in float.
template <class Body>
void dispatch_floating(const char* op, const Tensor& t, Body&& body) {
  switch (t.dtype()) {
    case DType::f32: return body(float{});
    case DType::f16: return body(__half{});
    case DType::bf16: return body(__nv_bfloat16{});
    default: throw DtypeError(std::string(op) + ": no CUDA kernel for " + t.str(), "use f32, f16 or bf16");
  }
}

/// Calls body(T{}) with the element type of any tensor.
template <class Body>
void dispatch_any(const Tensor& t, Body&& body) {
  switch (t.dtype()) {
    case DType::i32: return body(std::int32_t{});
    case DType::i64: return body(std::int64_t{});
    case DType::u8: return body(std::uint8_t{});
    default: return dispatch_floating("convert", t, body);
  }
}

template <class T>
T* pointer(const Tensor& t) {
  return static_cast<T*>(t.raw_mutable_data());
}

inline constexpr int kThreads = 256;

/// Blocks for a grid-stride loop over n items: enough to fill the card, no more than there is work for.
inline unsigned blocks_for(const Context& context, std::int64_t n, int threads = kThreads) {
  const std::int64_t wanted = (n + threads - 1) / threads;
  const std::int64_t most = std::int64_t{context.multiprocessors()} * (2048 / threads);
  return static_cast<unsigned>(wanted < 1 ? 1 : wanted < most ? wanted : most);
}

/// 16 bytes of elements, moved as one access.
template <class T>
struct alignas(16) Pack {
  static constexpr int kSize = 16 / sizeof(T);
  T at[kSize];
};

/// First item and step of a grid-stride loop.
__device__ inline std::int64_t grid_index() { return blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; }
__device__ inline std::int64_t grid_step() { return gridDim.x * std::int64_t{blockDim.x}; }

}  // namespace cuttle::cuda
