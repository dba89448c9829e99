#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <string>

#include "cuda/check.hpp"
#include "cuda/runtime/context.hpp"
#include "cuttle/error.hpp"

namespace cuttle::cuda {

/// Calls body(T{}) with the element type of a floating tensor. f64 exists on the CPU only. Arithmetic is done in float.
template <class Body> void dispatch_floating(const char* op, const Tensor& t, Body&& body) {
  switch (t.dtype()) {
    case DType::f32: return body(float{});
    case DType::f16: return body(__half{});
    case DType::bf16: return body(__nv_bfloat16{});
    default: throw DtypeError(std::string(op) + ": no CUDA kernel for " + t.str(), "use f32, f16 or bf16");
  }
}

/// Calls body(T{}) with the element type of any tensor: what is only stored and converted.
template <class Body> void dispatch_any(const Tensor& t, Body&& body) {
  switch (t.dtype()) {
    case DType::f32: return body(float{});
    case DType::f64: return body(double{});
    case DType::f16: return body(__half{});
    case DType::bf16: return body(__nv_bfloat16{});
    case DType::i32: return body(std::int32_t{});
    case DType::i64: return body(std::int64_t{});
    case DType::u8: return body(std::uint8_t{});
  }
}

template <class T> T* pointer(const Tensor& t) { return static_cast<T*>(t.raw_mutable_data()); }

inline constexpr int kThreads = 256;

/// Blocks for a grid-stride loop over n items: enough to fill the card, no more than there is work for.
inline unsigned blocks_for(const Context& context, std::int64_t n, int threads = kThreads) {
  const std::int64_t wanted = (n + threads - 1) / threads;
  const std::int64_t most = std::int64_t{context.multiprocessors()} * (2048 / threads);
  return static_cast<unsigned>(wanted < 1 ? 1 : wanted < most ? wanted : most);
}

/// Blocks that hold a thread for each of n < 2^31 items.
inline unsigned blocks_covering(std::int64_t n, int threads = kThreads) {
  return static_cast<unsigned>((n + threads - 1) / threads);
}

/// Elements that are moved as one access.
template <class T, int kElements> struct alignas(sizeof(T) * kElements) Chunk {
  static constexpr int kSize = kElements;
  T at[kElements];
};

/// 16 bytes of elements.
template <class T> using Pack = Chunk<T, 16 / static_cast<int>(sizeof(T))>;

inline bool is_aligned(const void* p, std::size_t bytes) { return reinterpret_cast<std::uintptr_t>(p) % bytes == 0; }

/// Elements [first, first + kSize) of an array of n: one access where the caller knows the array to be aligned
/// (kAligned) and the chunk is whole; missing ones are 0.
template <class C, bool kAligned, class T> __device__ C load_chunk(const T* p, std::int64_t first, std::int64_t n) {
  if (kAligned && first + C::kSize <= n) return *reinterpret_cast<const C*>(p + first);
  C chunk;
#pragma unroll
  for (int j = 0; j < C::kSize; ++j) chunk.at[j] = first + j < n ? p[first + j] : T(0);
  return chunk;
}

template <bool kAligned, class C, class T>
__device__ void store_chunk(const C& chunk, T* p, std::int64_t first, std::int64_t n) {
  if (kAligned && first + C::kSize <= n) {
    *reinterpret_cast<C*>(p + first) = chunk;
    return;
  }
#pragma unroll
  for (int j = 0; j < C::kSize; ++j) {
    if (first + j < n) p[first + j] = chunk.at[j];
  }
}

/// Division of numbers below 2^31 by a constant of the launch: a multiplication and a shift (Granlund & Montgomery,
/// "Division by invariant integers using multiplication", PLDI 1994). The hardware has no integer division.
struct Divider {
  std::uint32_t divisor = 1, magic = 1, shift = 0;

  Divider() = default;
  explicit Divider(std::int64_t d) : divisor(static_cast<std::uint32_t>(d)) {
    while ((std::uint64_t{1} << shift) < divisor) ++shift;
    magic = static_cast<std::uint32_t>((((std::uint64_t{1} << shift) - divisor) << 32) / divisor + 1);
  }
  __device__ std::uint32_t divide(std::uint32_t n) const { return (__umulhi(n, magic) + n) >> shift; }
  /// Returns n % divisor and leaves n / divisor in n: takes the innermost coordinate off an index.
  __device__ std::uint32_t take(std::uint32_t& n) const {
    const std::uint32_t quotient = divide(n), remainder = n - quotient * divisor;
    n = quotient;
    return remainder;
  }
};

/// Calls body(first, count) for pieces of a batch whose elements can be counted in 31 bits: 64-bit arithmetic on every
/// index would cost more than the work itself. `per_image` is the size of the larger of an image's input and output.
template <class Body> void for_image_chunks(const char* op, std::int64_t images, std::int64_t per_image, Body&& body) {
  constexpr std::int64_t kMost = (std::int64_t{1} << 31) - 1;
  if (per_image > kMost) throw ShapeError(std::string(op) + ": an image of 2^31 elements or more has no CUDA kernel");
  const std::int64_t step = kMost / per_image;
  for (std::int64_t first = 0; first < images; first += step) {
    body(first, step < images - first ? step : images - first);
  }
}

/// First item and step of a grid-stride loop.
__device__ inline std::int64_t grid_index() { return blockIdx.x * std::int64_t{blockDim.x} + threadIdx.x; }
__device__ inline std::int64_t grid_step() { return gridDim.x * std::int64_t{blockDim.x}; }

}  // namespace cuttle::cuda
