#pragma once
#include <cmath>

#include "cuda/kernels/reduce.cuh"
#include "kernels.hpp"

/// What the kernels over rows of logits share.
namespace cuttle::cuda {

/// The threads of a row of logits: a block (of kThreads) where there are many classes, else a warp.
template <bool kBlock> struct RowThreads {
  __device__ std::int64_t first_row() const {
    return kBlock ? std::int64_t{blockIdx.x} : grid_index() / static_cast<std::int64_t>(kWarp);
  }
  __device__ std::int64_t row_step() const {
    return kBlock ? std::int64_t{gridDim.x} : grid_step() / static_cast<std::int64_t>(kWarp);
  }
  __device__ unsigned lane() const { return kBlock ? threadIdx.x : threadIdx.x % kWarp; }
  __device__ unsigned lanes() const { return kBlock ? blockDim.x : kWarp; }
  template <class T> __device__ T sum(T value) const {
    if constexpr (kBlock)
      return block_sum(value);
    else
      return warp_sum(value);
  }
  __device__ float max(float value) const {
    if constexpr (kBlock)
      return block_reduce(value, -INFINITY, Max{});
    else
      return warp_reduce(value, Max{});
  }
};

struct RowLaunch {
  bool wide;
  unsigned blocks;
  RowLaunch(const Context& context, std::int64_t rows, std::int64_t classes)
      : wide(classes > 1024), blocks(wide ? blocks_for(context, rows, 1) : blocks_for(context, rows * kWarp)) {}
};

/// log(sum(exp(x))) as max + log(sum): apart, the two keep digits that their sum loses. A NaN makes the sum NaN.
struct LogSumExp {
  float max, sum;
  __device__ float log_sum() const { return logf(sum); }
};

template <bool kBlock, class T>
__device__ LogSumExp log_sum_exp(const RowThreads<kBlock>& threads, const T* x, std::int64_t classes) {
  float max = -INFINITY;
  for (std::int64_t k = threads.lane(); k < classes; k += threads.lanes()) max = fmaxf(max, float(x[k]));
  max = threads.max(max);
  float sum = 0;
  for (std::int64_t k = threads.lane(); k < classes; k += threads.lanes()) sum += expf(float(x[k]) - max);
  return {max, threads.sum(sum)};
}

/// Part of register_classify.
void register_loss(Kernels& k);

}  // namespace cuttle::cuda
