#pragma once
#include "cuda/kernels/last_block.cuh"
#include "cuda/kernels/norm.hpp"
#include "cuda/kernels/vec.cuh"

/// What the batch norm kernels for NHWC have in common. A tensor is a matrix [N*H*W, C]; a block treats a tile of
/// channels (blockIdx.x) in a range of rows (blockIdx.y); each of its threads keeps V neighbouring channels, 16 bytes,
/// and their constants stay in its registers.
namespace cuttle::cuda {

struct NormMatrix {
  std::int64_t rows;
  int channels;
  int width, height;  ///< threads of a block that work: side by side over channels, below each other over rows
};

/// The place of a thread.
template <int V> struct NormPlace {
  int column, row, channel;
  bool active;
  std::int64_t begin, end;  ///< rows of the block
  std::int64_t stride;      ///< elements from one row of the thread to its next

  __device__ explicit NormPlace(const NormMatrix& m) {
    column = static_cast<int>(threadIdx.x) % m.width;
    row = static_cast<int>(threadIdx.x) / m.width;
    channel = (static_cast<int>(blockIdx.x) * m.width + column) * V;
    active = row < m.height && channel < m.channels;
    begin = m.rows * blockIdx.y / gridDim.y;
    end = m.rows * (blockIdx.y + 1) / gridDim.y;
    stride = static_cast<std::int64_t>(m.channels) * m.height;
  }
};

/// The constants of a normalisation. They come from the batch, or are the running ones.
struct NormConstants {
  const float *mean, *spread, *weight, *bias;  ///< weight and bias may be null
  bool is_variance;                            ///< spread is a variance, else an inverse deviation
  float eps;

  __device__ float inv_std(int channel) const {
    return is_variance ? 1.0f / sqrtf(spread[channel] + eps) : spread[channel];
  }
  __device__ float scale(int channel) const { return (weight ? weight[channel] : 1.0f) * inv_std(channel); }
  __device__ float shift(int channel) const { return bias ? bias[channel] : 0.0f; }
};

/// Forward and backward must round alike, so that the backward finds the same elements clamped.
__device__ inline float normalized(float x, float mean, float scale, float shift) {
  return __fmaf_rn(__fsub_rn(x, mean), scale, shift);
}

/// The sums of one block -> partials[blockIdx.y][0 and 1][channel].
template <int V>
__device__ void store_partials(const NormMatrix& m, const NormPlace<V>& at, float (&sums)[2 * V], float* shared,
                               float* partials) {
  sum_rows<2 * V>(sums, shared, at.row, m.height, m.width);
  if (!at.active || at.row != 0) return;
  float* to = partials + 2 * static_cast<std::int64_t>(blockIdx.y) * m.channels + at.channel;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    to[j] = sums[j];
    to[m.channels + j] = sums[V + j];
  }
}

template <int W> __device__ Vec<float, W> load_past_l1(const float* p) {
  Vec<float, W> v;
  if constexpr (W == 4) {
    const float4 f = __ldcg(reinterpret_cast<const float4*>(p));
    v.at[0] = f.x, v.at[1] = f.y, v.at[2] = f.z, v.at[3] = f.w;
  } else {
    v.at[0] = __ldcg(p);
  }
  return v;
}

/// In the last block of a tile: calls finish(channel, sum0, sum1) with the sums over all ranges of rows.
template <int V, class Finish>
__device__ void merge_partials(const NormMatrix& m, const float* partials, double* shared, Finish finish) {
  constexpr int W = V < 4 ? V : 4, kAtOnce = 8;
  static_assert(V == 1 || V % 4 == 0);
  const int width = m.width * (V / W), height = kThreads / width;
  const int column = static_cast<int>(threadIdx.x) % width, row = static_cast<int>(threadIdx.x) / width;
  const int channel = static_cast<int>(blockIdx.x) * m.width * V + column * W;
  const bool active = row < height && channel < m.channels;
  const int ranges = static_cast<int>(gridDim.y);
  double sums[2 * W] = {};
  if (active) {
    for (int first = row; first < ranges; first += kAtOnce * height) {
      Vec<float, W> part[kAtOnce][2];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const int range = first + k * height;
        const float* from = partials + 2 * static_cast<std::int64_t>(range) * m.channels + channel;
        if (range < ranges) {
          part[k][0] = load_past_l1<W>(from);
          part[k][1] = load_past_l1<W>(from + m.channels);
        } else {
          part[k][0] = part[k][1] = {};
        }
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
#pragma unroll
        for (int j = 0; j < W; ++j) {
          sums[j] += part[k][0].at[j];
          sums[W + j] += part[k][1].at[j];
        }
      }
    }
  }
  sum_rows<2 * W>(sums, shared, row, height, width);
  if (!active || row != 0) return;
#pragma unroll
  for (int j = 0; j < W; ++j) finish(channel + j, sums[j], sums[W + j]);
}

/// Bytes of shared memory that sums of floats for V channels and merging need.
template <int V> inline constexpr int kNormShared = kThreads * 2 * (V < 4 ? V : 4) * static_cast<int>(sizeof(double));

struct NormGrid {
  NormMatrix matrix;
  dim3 blocks;
};

/// One wave of blocks that stay on the card together, so that all end together and a second pass over the same ranges,
/// backwards, finds what the first read last still in the L2 cache. What lies in that cache anyway is read so fast that
/// merging the sums of the blocks is most of the work: there few blocks are better.
inline NormGrid norm_grid(const Context& context, const Tensor& x, int v, int blocks_per_multiprocessor) {
  constexpr int kWidest = 16, kRowsAtLeast = 4, kFewBlocks = 2;
  constexpr std::size_t kInCache = std::size_t{24} << 20;  // less than the L2 of any card from Ampere's A100 on
  const auto channels = static_cast<int>(x.size(1));
  const int vectors = channels / v, tiles = (vectors + kWidest - 1) / kWidest, width = (vectors + tiles - 1) / tiles;
  const int each = x.nbytes() > kInCache ? blocks_per_multiprocessor : std::min(kFewBlocks, blocks_per_multiprocessor);
  NormGrid grid{{x.numel() / channels, channels, width, kThreads / width}, {}};
  const std::int64_t room = std::int64_t{context.multiprocessors()} * each / tiles;
  const std::int64_t most = grid.matrix.rows / (grid.matrix.height * kRowsAtLeast);
  grid.blocks =
      dim3(static_cast<unsigned>(tiles), static_cast<unsigned>(std::max<std::int64_t>(1, std::min(room, most))));
  return grid;
}

inline Tensor norm_scratch(const Tensor& x, std::int64_t floats) {
  return Tensor::empty({floats * static_cast<std::int64_t>(sizeof(float))}, {DType::u8, x.device()});
}

/// Calls body(T{}, integral_constant V) with as many channels a thread as 16 bytes hold, or with 1 where the tensors
/// do not allow that.
template <class Body>
void dispatch_channels(const Tensor& x, std::initializer_list<const Tensor*> tensors, Body&& body) {
  std::uintptr_t bits = 0;
  for (const Tensor* t : tensors) {
    if (t->defined()) bits |= reinterpret_cast<std::uintptr_t>(t->raw_data());
  }
  dispatch_floating("batch_norm2d", x, [&]<class T>(T element) {
    constexpr int kMost = 16 / sizeof(T);
    if (bits % 16 == 0 && x.size(1) % kMost == 0) {
      body(element, std::integral_constant<int, kMost>());
    } else {
      body(element, std::integral_constant<int, 1>());
    }
  });
}

}  // namespace cuttle::cuda
