// Filter gradients of 3x3 depthwise convolutions: x and dy are read about once. A thread has four channels, keeps their
// 36 sums in registers and marches down chunks of rows; a block adds its threads' sums, a second kernel the blocks'.
#include <algorithm>

#include "cuda/conv/depthwise.cuh"
#include "cuda/kernels/bias.hpp"

namespace cuttle::cuda::depthwise {

namespace {

constexpr int kBlock = 192, kWarps = kBlock / 32;
constexpr int kFours = 8;                ///< neighbouring threads side by side along the channels
constexpr int kLanes = kBlock / kFours;  ///< pieces that a block works on at once

/// sums[r * 3 + s] of four channels over one piece, stride 1: x is read row by row, the three rows of dy that a row of
/// x meets stay in registers.
template <class T>
__device__ inline void add_stride1(const T* dy, const T* x, const Sizes& z, int image, int channel, int p0, int count,
                                   int q0, float (&sums)[9][4]) {
  constexpr int kStrip = 4, kColumns = kStrip + 2;
  const int h0 = p0 - z.padding_h, w0 = q0 - z.padding_w;
  // Row p0 + i of dy is in held[i % 3]; rows of other chunks count as zero.
  float held[3][kStrip][4] = {};
  Four<T> next_row[kColumns], next_gradient[kStrip];
  const auto load_next = [&](int k) {
    load_row<kColumns>(x, image, h0 + k, z.h, z.w, z.c, channel, w0, next_row);
    load_row<kStrip>(dy, image, k < count ? p0 + k : -1, z.p, z.q, z.c, channel, q0, next_gradient);
  };
  // A row ahead in 16 bits; in f32 there are no registers for it.
  constexpr bool kAhead = sizeof(T) == 2;
  if (kAhead) load_next(0);
  for (int k0 = 0; k0 < count + 2; k0 += 3) {
#pragma unroll
    for (int j3 = 0; j3 < 3; ++j3) {
      const int k = k0 + j3;
      if (k >= count + 2) break;
      if (!kAhead) load_next(k);
      Four<T> row[kColumns];
#pragma unroll
      for (int j = 0; j < kColumns; ++j) row[j] = next_row[j];
#pragma unroll
      for (int t = 0; t < kStrip; ++t) {
#pragma unroll
        for (int v = 0; v < 4; ++v) held[j3][t][v] = static_cast<float>(next_gradient[t].at[v]);
      }
      if (kAhead && k + 1 < count + 2) load_next(k + 1);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        float value[4];
#pragma unroll
        for (int v = 0; v < 4; ++v) value[v] = static_cast<float>(row[j].at[v]);
#pragma unroll
        for (int s = 0; s < 3; ++s) {
          const int t = j - s;
          if (t < 0 || t >= kStrip) continue;
#pragma unroll
          for (int v = 0; v < 4; ++v) {
            sums[s][v] = fmaf(value[v], held[j3][t][v], sums[s][v]);
            sums[3 + s][v] = fmaf(value[v], held[(j3 + 2) % 3][t][v], sums[3 + s][v]);
            sums[6 + s][v] = fmaf(value[v], held[(j3 + 1) % 3][t][v], sums[6 + s][v]);
          }
        }
      }
    }
  }
}

/// The same for stride 2.
template <class T>
__device__ inline void add_stride2(const T* dy, const T* x, const Sizes& z, int image, int channel, int p0, int count,
                                   int q0, float (&sums)[9][4]) {
  constexpr int kStrip = 2, kColumns = 2 * kStrip + 1;
  for (int p = p0; p < p0 + count; ++p) {
    Four<T> gradient[kStrip], rows[3][kColumns];
    load_row<kStrip>(dy, image, p, z.p, z.q, z.c, channel, q0, gradient);
#pragma unroll
    for (int r = 0; r < 3; ++r) {
      load_row<kColumns>(x, image, 2 * p - z.padding_h + r, z.h, z.w, z.c, channel, 2 * q0 - z.padding_w, rows[r]);
    }
#pragma unroll
    for (int r = 0; r < 3; ++r) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
#pragma unroll
        for (int t = 0; t < kStrip; ++t) {
          const int s = j - 2 * t;
          if (s < 0 || s > 2) continue;
#pragma unroll
          for (int v = 0; v < 4; ++v) {
            const auto value = static_cast<float>(rows[r][j].at[v]);
            sums[r * 3 + s][v] = fmaf(value, static_cast<float>(gradient[t].at[v]), sums[r * 3 + s][v]);
          }
        }
      }
    }
  }
}

/// parts[blockIdx.y][c * 9 + tap]: what the block's pieces add to dw of channels blockIdx.x * 32 and the 31 after it.
template <class T, int kStride>
__global__ void __launch_bounds__(kBlock, 2)
    filter_kernel(const T* dy, const T* x, float* parts, const Sizes z, const March m) {
  constexpr int kStrip = kStride == 1 ? 4 : 2;
  __shared__ float partial[kWarps][kFours][36];
  const int four = threadIdx.x % kFours, lane = threadIdx.x / kFours, warp = threadIdx.x / 32;
  const int first = blockIdx.x * kFours * 4, channel = first + four * 4;
  float sums[9][4] = {};
  if (channel < z.c) {
    const std::int64_t pieces = m.pieces(z.n);
    for (std::int64_t piece = std::int64_t{blockIdx.y} * kLanes + lane; piece < pieces;
         piece += std::int64_t{gridDim.y} * kLanes) {
      const int strip = static_cast<int>(piece % m.strips), chunk = static_cast<int>(piece / m.strips % m.chunks);
      const int image = static_cast<int>(piece / m.strips / m.chunks), p0 = chunk * m.rows;
      const int count = min(m.rows, z.p - p0);
      if constexpr (kStride == 1) {
        add_stride1(dy, x, z, image, channel, p0, count, strip * kStrip, sums);
      } else {
        add_stride2(dy, x, z, image, channel, p0, count, strip * kStrip, sums);
      }
    }
  }
  // A warp holds four lanes of the same eight fours.
#pragma unroll
  for (int tap = 0; tap < 9; ++tap) {
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      float sum = sums[tap][v];
      sum += __shfl_xor_sync(0xffffffffu, sum, kFours);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2 * kFours);
      if (threadIdx.x % 32 < kFours) partial[warp][four][v * 9 + tap] = sum;
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < kFours * 36; i += kBlock) {
    if (first * 9 + i >= z.c * 9) break;
    float sum = 0;
#pragma unroll
    for (int k = 0; k < kWarps; ++k) sum += partial[k][i / 36][i % 36];
    parts[(std::int64_t{blockIdx.y} * z.c + first) * 9 + i] = sum;
  }
}

/// The cut that leaves the busiest of `lanes` lanes the fewest rows to walk, with the `margin` rows of every chunk.
March shortest_march(const Sizes& z, int strip, int margin, std::int64_t lanes) {
  March best{};
  std::int64_t least = 0;
  for (int chunks = 1; chunks <= std::min((z.p + 7) / 8, 1024); ++chunks) {
    March m{(z.q + strip - 1) / strip, 0, (z.p + chunks - 1) / chunks};
    m.chunks = (z.p + m.rows - 1) / m.rows;
    const std::int64_t steps = (m.pieces(z.n) + lanes - 1) / lanes * (m.rows + margin);
    if (chunks == 1 || steps < least) best = m, least = steps;
  }
  return best;
}

}  // namespace

template <class T>
void backward_filter_fast(const Context& context, const Sizes& z, const T* dy, const T* x, const Tensor& dw,
                          bool accumulate) {
  const std::int64_t groups = (z.c + kFours * 4 - 1) / (kFours * 4);
  // All blocks at once: a second wave would wait for the first to end.
  const std::int64_t blocks = std::int64_t{context.multiprocessors()} * 2;
  const std::int64_t most = blocks > groups ? blocks / groups : 1;
  const March m = z.stride_h == 1 ? shortest_march(z, 4, 2, most * kLanes) : shortest_march(z, 2, 0, most * kLanes);
  const std::int64_t needed = (m.pieces(z.n) + kLanes - 1) / kLanes;
  const std::int64_t count = most < needed ? most : needed;
  const Tensor parts = Tensor::empty({count, z.c * std::int64_t{9}}, {DType::f32, dw.device()});
  const dim3 grid(static_cast<unsigned>(groups), static_cast<unsigned>(count));
  if (z.stride_h == 1) {
    filter_kernel<T, 1><<<grid, kBlock, 0, context.stream()>>>(dy, x, pointer<float>(parts), z, m);
  } else {
    filter_kernel<T, 2><<<grid, kBlock, 0, context.stream()>>>(dy, x, pointer<float>(parts), z, m);
  }
  CUTTLE_LAUNCHED("depthwise backward filter");
  sum_parts(pointer<float>(parts), count, dw, accumulate);
}

template void backward_filter_fast(const Context&, const Sizes&, const float*, const float*, const Tensor&, bool);
template void backward_filter_fast(const Context&, const Sizes&, const __half*, const __half*, const Tensor&, bool);
template void backward_filter_fast(const Context&, const Sizes&, const __nv_bfloat16*, const __nv_bfloat16*,
                                   const Tensor&, bool);

}  // namespace cuttle::cuda::depthwise
