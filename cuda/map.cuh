#pragma once
#include "cuda/dispatch.cuh"

namespace cuttle::cuda {

template <class T, int kInputs>
struct Inputs {
  const T* of[kInputs];
};

/// out[i] = f(in0[i], in1[i]...), 16 bytes at a time where every pointer is a multiple of 16. out may be an input.
template <class T, int kInputs, bool kPacked, class F>
__global__ void map_kernel(Inputs<T, kInputs> in, T* out, std::int64_t n, F f) {
  using C = float;
  constexpr int kSize = kPacked ? Pack<T>::kSize : 1;
  for (std::int64_t i = grid_index(); i < n / kSize; i += grid_step()) {
    if constexpr (kPacked) {
      Pack<T> from[kInputs], to;
#pragma unroll
      for (int k = 0; k < kInputs; ++k) from[k] = reinterpret_cast<const Pack<T>*>(in.of[k])[i];
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        if constexpr (kInputs == 1) to.at[j] = T(f(C(from[0].at[j])));
        else to.at[j] = T(f(C(from[0].at[j]), C(from[1].at[j])));
      }
      reinterpret_cast<Pack<T>*>(out)[i] = to;
    } else {
      if constexpr (kInputs == 1) out[i] = T(f(C(in.of[0][i])));
      else out[i] = T(f(C(in.of[0][i]), C(in.of[1][i])));
    }
  }
  // The elements behind the last whole pack.
  if constexpr (kPacked) {
    const std::int64_t i = n / kSize * kSize + grid_index();
    if (i < n) {
      if constexpr (kInputs == 1) out[i] = T(f(C(in.of[0][i])));
      else out[i] = T(f(C(in.of[0][i]), C(in.of[1][i])));
    }
  }
}

template <class T, int kInputs, class F>
void map(const Context& context, Inputs<T, kInputs> in, T* out, std::int64_t n, F f) {
  std::uintptr_t bits = reinterpret_cast<std::uintptr_t>(out);
  for (const T* p : in.of) bits |= reinterpret_cast<std::uintptr_t>(p);
  if (bits % 16 == 0) {
    map_kernel<T, kInputs, true>
        <<<blocks_for(context, n / Pack<T>::kSize), kThreads, 0, context.stream()>>>(in, out, n, f);
  } else {
    map_kernel<T, kInputs, false><<<blocks_for(context, n), kThreads, 0, context.stream()>>>(in, out, n, f);
  }
  CUTTLE_LAUNCHED("map");
}

}  // namespace cuttle::cuda
