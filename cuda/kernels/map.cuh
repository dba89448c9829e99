#pragma once
#include "cuda/kernels/dispatch.cuh"

namespace cuttle::cuda {

template <class T, int kInputs> struct Inputs { const T* of[kInputs]; };

/// Several packs are loaded before the first is stored, so that their latencies overlap. An element is read and written
/// by one thread: out may be an input.
template <class T, int kInputs, bool kAligned, class F>
__global__ void map_kernel(Inputs<T, kInputs> in, T* out, std::int64_t n, F f) {
  constexpr int kUnroll = 4, kSize = Pack<T>::kSize;
  const std::int64_t row = std::int64_t{blockDim.x} * kSize;
  for (std::int64_t first = blockIdx.x * row * kUnroll + threadIdx.x * kSize; first < n;
       first += gridDim.x * row * kUnroll) {
    Pack<T> from[kUnroll][kInputs];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int k = 0; k < kInputs; ++k) from[u][k] = load_chunk<Pack<T>, kAligned>(in.of[k], first + u * row, n);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      Pack<T> to;
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        if constexpr (kInputs == 1) {
          to.at[j] = T(f(float(from[u][0].at[j])));
        } else {
          to.at[j] = T(f(float(from[u][0].at[j]), float(from[u][1].at[j])));
        }
      }
      store_chunk<kAligned>(to, out, first + u * row, n);
    }
  }
}

/// out[i] = f(in0[i], in1[i]...) in float, with 16-byte accesses where every pointer is a multiple of 16. out may be an
/// input. F is a struct with a __device__ operator(): nvcc takes no device lambda inside a generic one.
template <class T, int kInputs, class F>
void map(const Context& context, Inputs<T, kInputs> in, T* out, std::int64_t n, F f) {
  bool aligned = is_aligned(out, 16);
  for (const T* p : in.of) aligned = aligned && is_aligned(p, 16);
  const unsigned blocks = blocks_for(context, (n + 4 * Pack<T>::kSize - 1) / (4 * Pack<T>::kSize));
  if (aligned) {
    map_kernel<T, kInputs, true><<<blocks, kThreads, 0, context.stream()>>>(in, out, n, f);
  } else {
    map_kernel<T, kInputs, false><<<blocks, kThreads, 0, context.stream()>>>(in, out, n, f);
  }
  CUTTLE_LAUNCHED("map");
}

}  // namespace cuttle::cuda
