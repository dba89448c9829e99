#pragma once
#include "cuda/kernels/dispatch.cuh"

/// Reductions in one launch: every block writes partial sums, and the block that finishes last adds them up in a fixed
/// order, so that results do not depend on which one that is.
namespace cuttle::cuda {

/// Sums `value` over the threads of each column, threads lying as [rows][width] in the block of kThreads: row 0 has the
/// result. `shared` holds N * kThreads numbers and may be used again on return. Every thread of the block must call it.
template <int N, class A> __device__ void sum_rows(A (&value)[N], A* shared, int row, int rows, int width) {
  A* mine = shared + threadIdx.x;
#pragma unroll
  for (int i = 0; i < N; ++i) mine[i * kThreads] = value[i];
  for (int left = rows; left > 1;) {
    const int half = (left + 1) / 2;
    __syncthreads();
    if (row < left - half) {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        value[i] += mine[i * kThreads + half * width];
        mine[i * kThreads] = value[i];
      }
    }
    left = half;
  }
  __syncthreads();
}

/// Whether this is the last of `blocks` blocks to come here; it then sees what the others wrote before (read it with
/// __ldcg: lines in the L1 cache may be older). The counter wraps to zero. Every thread of the block must call it.
__device__ inline bool is_last_block(unsigned* counter, unsigned blocks) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicInc(counter, blocks - 1) == blocks - 1;
    __threadfence();
  }
  __syncthreads();
  return last;
}

}  // namespace cuttle::cuda
