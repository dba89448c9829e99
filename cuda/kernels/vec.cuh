#pragma once
#include "cuda/kernels/dispatch.cuh"

namespace cuttle::cuda {

template <class T, int N> using Vec = Chunk<T, N>;

/// One access: the address is a multiple of the N elements' size.
template <int N, class T> __device__ Vec<T, N> load(const T* p) { return *reinterpret_cast<const Vec<T, N>*>(p); }
template <int N, class T> __device__ void store(T* p, const Vec<T, N>& v) { *reinterpret_cast<Vec<T, N>*>(p) = v; }

template <class T> T* pointer_or_null(const Tensor& t) { return t.defined() ? pointer<T>(t) : nullptr; }

}  // namespace cuttle::cuda
