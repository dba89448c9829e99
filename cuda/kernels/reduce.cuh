#pragma once
#include "cuda/kernels/dispatch.cuh"

/// Reductions whose order depends on the launch alone: the same input gives the same bits every time.
namespace cuttle::cuda {

inline constexpr unsigned kWarp = 32, kAllLanes = 0xffffffff;

struct Sum {
  template <class T> __device__ T operator()(T a, T b) const { return a + b; }
};

/// Of floats; NaN is passed over.
struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

/// Over the lanes of a warp, for every lane: a butterfly of commutative operations, so all lanes hold the same bits.
template <class T, class Op> __device__ T warp_reduce(T value, Op op) {
#pragma unroll
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) value = op(value, __shfl_xor_sync(kAllLanes, value, lanes));
  return value;
}

template <class T> __device__ T warp_sum(T value) { return warp_reduce(value, Sum{}); }

/// Over the threads of a 1-D block of whole warps, for every thread. `identity` stands for warps that do not exist.
/// Every thread of the block must call it; calls may follow each other.
template <class T, class Op> __device__ T block_reduce(T value, T identity, Op op) {
  __shared__ T parts[kWarp];
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  value = warp_reduce(value, op);
  if (lane == 0) parts[warp] = value;
  __syncthreads();
  value = warp_reduce(lane < blockDim.x / kWarp ? parts[lane] : identity, op);
  __syncthreads();
  return value;
}

template <class T> __device__ T block_sum(T value) { return block_reduce(value, T(0), Sum{}); }

/// The last step of a sum over a whole grid in one launch: adds up what each block brings (its thread 0's `mine`), in
/// the order of the blocks, and calls finish(total) in one thread of the block that comes last. `partials` holds one
/// element a block; `arrived` is 0 before and after. Every thread of the 1-D grid must call it. Launches that share a
/// counter must not overlap, and do not where they are on one stream.
template <class T, class Finish>
__device__ void finish_grid_sum(T mine, T* partials, unsigned* arrived, Finish finish) {
  if (gridDim.x == 1) {
    if (threadIdx.x == 0) finish(mine);
    return;
  }
  __shared__ bool is_last;
  if (threadIdx.x == 0) {
    partials[blockIdx.x] = mine;
    __threadfence();
    is_last = atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1;  // wraps to 0 for the next launch
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  T total = 0;
  for (unsigned b = threadIdx.x; b < gridDim.x; b += blockDim.x) total += __ldcg(partials + b);
  total = block_sum(total);
  if (threadIdx.x == 0) finish(total);
}

}  // namespace cuttle::cuda
