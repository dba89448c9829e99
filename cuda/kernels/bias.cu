#include "cuda/kernels/bias.hpp"

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "cuda/kernels/last_block.cuh"
#include "cuda/kernels/vec.cuh"
#include "cuda/runtime/counters.hpp"

namespace cuttle::cuda {

namespace {

/// A tensor as outer x channels x inner: NHWC and matrices have inner 1, NCHW has outer N and inner H*W.
struct Channels {
  std::int64_t outer, channels, inner;
};

Channels channels_of(const Tensor& t) {
  if (t.rank() != 4) return {t.size(0), t.size(1), 1};
  if (t.layout() == Layout::nhwc) return {t.size(0) * t.size(2) * t.size(3), t.size(1), 1};
  return {t.size(0), t.size(1), t.size(2) * t.size(3)};
}

template <class T> bool packs(std::initializer_list<const Tensor*> tensors, std::int64_t channels) {
  return channels % Pack<T>::kSize == 0 && std::all_of(tensors.begin(), tensors.end(), [](const Tensor* t) {
           return !t->defined() || is_aligned(t->raw_data(), 16);
         });
}

__device__ float biased(float y, float bias, bool relu) {
  const float sum = y + bias;
  return relu && sum < 0 ? 0.0f : sum;  // NaN stays NaN
}

template <class T>
__global__ void add_bias_kernel(const T* bias, T* y, std::int64_t n, std::int64_t channels, std::int64_t inner,
                                bool relu) {
  for (std::int64_t i = grid_index(); i < n; i += grid_step()) {
    y[i] = T(biased(static_cast<float>(y[i]), static_cast<float>(bias[i / inner % channels]), relu));
  }
}

template <class T>
__global__ void add_bias_packed_kernel(const Pack<T>* bias, Pack<T>* y, std::int64_t packs, std::int64_t row,
                                       bool relu) {
  for (std::int64_t i = grid_index(); i < packs; i += grid_step()) {
    Pack<T> value = y[i];
    const Pack<T> b = bias[i % row];
#pragma unroll
    for (int j = 0; j < Pack<T>::kSize; ++j) {
      value.at[j] = T(biased(static_cast<float>(value.at[j]), static_cast<float>(b.at[j]), relu));
    }
    y[i] = value;
  }
}

template <int W> __device__ Vec<float, W> load_part(const float* p) {
  Vec<float, W> v;
  if constexpr (W == 4) {
    const float4 f = __ldcg(reinterpret_cast<const float4*>(p));
    v.at[0] = f.x, v.at[1] = f.y, v.at[2] = f.z, v.at[3] = f.w;
  } else {
    static_assert(W == 1);
    v.at[0] = __ldcg(p);
  }
  return v;
}

/// sums[j] += parts[p * n + j] for p = first, first + step... below count; several loads are under way at a time.
template <int W>
__device__ void add_every(const float* parts, std::int64_t n, std::int64_t first, std::int64_t step, std::int64_t count,
                          float (&sums)[W]) {
  constexpr int kAtOnce = 8;
  for (std::int64_t p = first; p < count; p += kAtOnce * step) {
    Vec<float, W> part[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      if (p + k * step < count) {
        part[k] = load_part<W>(parts + (p + k * step) * n);
      } else {
        part[k] = {};
      }
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
#pragma unroll
      for (int j = 0; j < W; ++j) sums[j] += part[k].at[j];
    }
  }
}

template <class T> __device__ void write_sum(T* out, float sum, bool accumulate) {
  *out = T(accumulate ? sum + static_cast<float>(*out) : sum);
}

constexpr int kBlocksEach = 2;  // of a multiprocessor: few, so that what they bring is soon added up

/// A matrix and the threads of a block: `width` side by side, each with V columns, and `height` below each other.
struct ColumnGrid {
  std::int64_t rows, columns;
  int width, height;
};

/// Adds kRows rows of a thread's columns, which start at element `at` and lie `step` elements apart; all are under way
/// at a time. See column_sums_kernel.
template <int kRows, bool kRelu, class T, int V>
__device__ void take_rows(const T* y, const T* dy, T* dx, std::int64_t at, std::int64_t step, float (&sums)[V]) {
  Vec<T, V> gradient[kRows], output[kRows];
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    gradient[k] = load<V>(dy + at + k * step);
    if constexpr (kRelu) output[k] = load<V>(y + at + k * step);
  }
#pragma unroll
  for (int k = 0; k < kRows; ++k) {
    if constexpr (kRelu) {
#pragma unroll
      for (int j = 0; j < V; ++j) {
        if (static_cast<float>(output[k].at[j]) <= 0) gradient[k].at[j] = T(0.0f);
      }
      store<V>(dx + at + k * step, gradient[k]);
    }
#pragma unroll
    for (int j = 0; j < V; ++j) sums[j] += static_cast<float>(gradient[k].at[j]);
  }
}

/// Sums of columns: block (tile, range) adds the rows of its range, and the last block of a tile adds up the ranges in
/// their order. With kRelu what is added is dx, which is dy where y > 0 or y is NaN and 0 elsewhere; it may be dy.
template <class T, int V, bool kRelu>
__global__ void __launch_bounds__(kThreads, kBlocksEach)
    column_sums_kernel(ColumnGrid m, const T* y, const T* dy, T* dx, float* parts, unsigned* counters, T* out,
                       bool accumulate) {
  constexpr int kAtOnce = 4;
  __shared__ float shared[V * kThreads];
  const int row = static_cast<int>(threadIdx.x) / m.width;
  const std::int64_t tile = std::int64_t{blockIdx.x} * m.width * V;
  const std::int64_t column = tile + static_cast<int>(threadIdx.x) % m.width * V;
  const bool active = row < m.height && column < m.columns;
  float sums[V] = {};
  if (active) {
    const std::int64_t end = m.rows * (blockIdx.y + 1) / gridDim.y, step = m.height * m.columns;
    std::int64_t r = m.rows * blockIdx.y / gridDim.y + row, at = r * m.columns + column;
    for (; r + (kAtOnce - 1) * m.height < end; r += kAtOnce * m.height, at += kAtOnce * step) {
      take_rows<kAtOnce, kRelu>(y, dy, dx, at, step, sums);
    }
    for (; r < end; r += m.height, at += step) take_rows<1, kRelu>(y, dy, dx, at, step, sums);
  }
  sum_rows<V>(sums, shared, row, m.height, m.width);
  const bool has_sums = active && row == 0;
  if (gridDim.y == 1) {
    if (!has_sums) return;
#pragma unroll
    for (int j = 0; j < V; ++j) write_sum(out + column + j, sums[j], accumulate);
    return;
  }
  if (has_sums) {
#pragma unroll
    for (int j = 0; j < V; ++j) parts[blockIdx.y * m.columns + column + j] = sums[j];
  }
  if (!is_last_block(counters + blockIdx.x, gridDim.y)) return;

  // The block lies over the parts of its tile as it lay over the matrix, with 4 columns a thread where there are more.
  constexpr int W = V < 4 ? V : 4;
  const int width = m.width * (V / W), height = kThreads / width;
  const int part_row = static_cast<int>(threadIdx.x) / width;
  const std::int64_t part_column = tile + static_cast<int>(threadIdx.x) % width * W;
  const bool merges = part_row < height && part_column < m.columns;
  float totals[W] = {};
  if (merges) add_every<W>(parts + part_column, m.columns, part_row, height, gridDim.y, totals);
  sum_rows<W>(totals, shared, part_row, height, width);
  if (!merges || part_row != 0) return;
#pragma unroll
  for (int j = 0; j < W; ++j) write_sum(out + part_column + j, totals[j], accumulate);
}

/// NCHW: block (channel, part) adds its share of the images' planes.
template <class T>
__global__ void plane_sums_kernel(const T* x, std::int64_t images, std::int64_t inner, float* parts) {
  __shared__ float partial[kThreads / 32];
  const std::int64_t channel = blockIdx.x, channels = gridDim.x;
  float sum = 0;
  for (std::int64_t n = blockIdx.y; n < images; n += gridDim.y) {
    const T* plane = x + (n * channels + channel) * inner;
    for (std::int64_t i = threadIdx.x; i < inner; i += blockDim.x) sum += static_cast<float>(plane[i]);
  }
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0;
    for (const float value : partial) total += value;
    parts[blockIdx.y * channels + channel] = total;
  }
}

constexpr int kLanes = 32;     // a warp lies along the sums, so that its accesses are contiguous
constexpr int kMostRows = 32;  // and up to this many warps of a block along the parts

template <class T>
__global__ void sum_parts_kernel(const float* parts, std::int64_t count, std::int64_t n, T* out, bool accumulate) {
  __shared__ float partial[kMostRows][kLanes];
  const std::int64_t i = blockIdx.x * std::int64_t{kLanes} + threadIdx.x;
  float sum[1] = {};
  if (i < n) add_every<1>(parts + i, n, threadIdx.y, blockDim.y, count, sum);
  if (blockDim.y > 1) {
    partial[threadIdx.y][threadIdx.x] = sum[0];
    __syncthreads();
    if (threadIdx.y != 0) return;
#pragma unroll 8
    for (unsigned row = 1; row < blockDim.y; ++row) sum[0] += partial[row][threadIdx.x];
  }
  if (i < n) write_sum(out + i, sum[0], accumulate);
}

/// Of a matrix or an NHWC tensor; dx is undefined for the sums alone, and y with it.
template <class T, int V, bool kRelu>
void column_sums(const Context& c, const Channels& s, const Tensor& y, const Tensor& dy, const Tensor& dx,
                 const Tensor& db, bool accumulate) {
  // A row of a tile is a line of the cache; narrow tiles leave more threads for adding up the ranges.
  constexpr std::int64_t kWidest = V == 1 ? 32 : 8, kRowsAtLeast = 8;
  const std::int64_t vectors = s.channels / V, tiles = (vectors + kWidest - 1) / kWidest;
  const int width = static_cast<int>((vectors + tiles - 1) / tiles);
  const ColumnGrid grid{s.outer, s.channels, width, kThreads / width};
  const std::int64_t room = kBlocksEach * c.multiprocessors() / tiles;
  const std::int64_t most = s.outer / (grid.height * kRowsAtLeast);
  const std::int64_t ranges = std::max<std::int64_t>(1, std::min(room, most));
  Tensor parts;
  if (ranges > 1) parts = Tensor::empty({ranges * s.channels}, {DType::f32, dy.device()});
  const dim3 blocks(static_cast<unsigned>(tiles), static_cast<unsigned>(ranges));
  column_sums_kernel<T, V, kRelu><<<blocks, kThreads, 0, c.stream()>>>(
      grid, pointer_or_null<T>(y), pointer<T>(dy), pointer_or_null<T>(dx), pointer_or_null<float>(parts),
      ranges > 1 ? block_counters(c, tiles) : nullptr, pointer<T>(db), accumulate);
  CUTTLE_LAUNCHED("bias_backward");
}

template <bool kRelu>
void column_sums_of(const Channels& s, const Tensor& y, const Tensor& dy, const Tensor& dx, const Tensor& db,
                    bool accumulate) {
  dispatch_floating("bias backward", dy, [&]<class T>(T) {
    if (packs<T>({&y, &dy, &dx}, s.channels)) {
      column_sums<T, Pack<T>::kSize, kRelu>(context(dy), s, y, dy, dx, db, accumulate);
    } else {
      column_sums<T, 1, kRelu>(context(dy), s, y, dy, dx, db, accumulate);
    }
  });
}

void bias_backward(const Tensor& dy, const Tensor& db, bool accumulate) {
  const Channels s = channels_of(dy);
  if (s.inner == 1) return column_sums_of<false>(s, {}, dy, {}, db, accumulate);
  const Context& c = context(dy);
  const std::int64_t count = std::min<std::int64_t>(8 * c.multiprocessors() / s.channels + 1, s.outer);
  const Tensor parts = Tensor::empty({count, s.channels}, {DType::f32, dy.device()});
  dispatch_floating("bias backward", dy, [&]<class T>(T) {
    const dim3 grid(static_cast<unsigned>(s.channels), static_cast<unsigned>(count));
    plane_sums_kernel<<<grid, kThreads, 0, c.stream()>>>(pointer<T>(dy), s.outer, s.inner, pointer<float>(parts));
  });
  CUTTLE_LAUNCHED("bias_backward");
  sum_parts(pointer<float>(parts), count, db, accumulate);
}

void bias_relu_backward(const Tensor& y, const Tensor& dy, const Tensor& dx, const Tensor& db, bool accumulate) {
  const Channels s = channels_of(dy);
  if (s.inner == 1) return column_sums_of<true>(s, y, dy, dx, db, accumulate);
  kernels(dy).relu_backward(y, dy, std::numeric_limits<double>::infinity(), dx);
  bias_backward(dx, db, accumulate);
}

}  // namespace

void add_bias(const Tensor& bias, const Tensor& y, bool relu) {
  const Context& c = context(y);
  const Channels s = channels_of(y);
  const std::int64_t n = y.numel();
  dispatch_floating("bias", y, [&]<class T>(T) {
    constexpr int kSize = Pack<T>::kSize;
    if (s.inner == 1 && packs<T>({&y, &bias}, s.channels)) {
      add_bias_packed_kernel<T><<<blocks_for(c, n / kSize), kThreads, 0, c.stream()>>>(
          pointer<Pack<T>>(bias), pointer<Pack<T>>(y), n / kSize, s.channels / kSize, relu);
    } else {
      add_bias_kernel<<<blocks_for(c, n), kThreads, 0, c.stream()>>>(pointer<T>(bias), pointer<T>(y), n, s.channels,
                                                                     s.inner, relu);
    }
  });
  CUTTLE_LAUNCHED("add_bias");
}

void sum_parts(const float* parts, std::int64_t count, const Tensor& out, bool accumulate) {
  const Context& c = context(out);
  const std::int64_t n = out.numel();
  // A thread has eight loads under way: no more warps than that leaves work for.
  const auto rows = static_cast<unsigned>(std::clamp<std::int64_t>((count + 7) / 8, 1, kMostRows));
  dispatch_floating("sum of parts", out, [&]<class T>(T) {
    const auto blocks = static_cast<unsigned>((n + kLanes - 1) / kLanes);
    sum_parts_kernel<<<blocks, dim3(kLanes, rows), 0, c.stream()>>>(parts, count, n, pointer<T>(out), accumulate);
  });
  CUTTLE_LAUNCHED("sum_parts");
}

void register_bias(Kernels& k) {
  k.bias_backward = bias_backward;
  k.bias_relu_backward = bias_relu_backward;
}

}  // namespace cuttle::cuda
