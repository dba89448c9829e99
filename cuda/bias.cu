#include "cuda/bias.hpp"

#include <algorithm>

#include "cuda/dispatch.cuh"

namespace cuttle::cuda {

namespace {

constexpr int kLanes = 32;  // a warp lies along the columns, so that its accesses are contiguous
constexpr int kRows = 8;    // and this many warps of a block along the rows

/// A tensor as outer x channels x inner: NHWC and matrices have inner 1, NCHW has outer N and inner H*W.
struct Channels {
  std::int64_t outer, channels, inner;
};

Channels channels_of(const Tensor& t) {
  if (t.rank() != 4) return {t.size(0), t.size(1), 1};
  if (t.layout() == Layout::nhwc) return {t.size(0) * t.size(2) * t.size(3), t.size(1), 1};
  return {t.size(0), t.size(1), t.size(2) * t.size(3)};
}

template <class T> bool packs(const Tensor& t, std::int64_t channels) {
  return channels % Pack<T>::kSize == 0 && reinterpret_cast<std::uintptr_t>(t.raw_data()) % 16 == 0;
}

template <class T>
__global__ void add_bias_kernel(const T* bias, T* y, std::int64_t n, std::int64_t channels, std::int64_t inner) {
  for (std::int64_t i = grid_index(); i < n; i += grid_step()) {
    y[i] = T(static_cast<float>(y[i]) + static_cast<float>(bias[i / inner % channels]));
  }
}

template <class T>
__global__ void add_bias_packed_kernel(const Pack<T>* bias, Pack<T>* y, std::int64_t packs, std::int64_t row) {
  for (std::int64_t i = grid_index(); i < packs; i += grid_step()) {
    Pack<T> value = y[i];
    const Pack<T> b = bias[i % row];
#pragma unroll
    for (int j = 0; j < Pack<T>::kSize; ++j) {
      value.at[j] = T(static_cast<float>(value.at[j]) + static_cast<float>(b.at[j]));
    }
    y[i] = value;
  }
}

/// Sums of columns of rows x columns: block (c, part) adds every rows-th row of columns c*32*V...; V elements a lane.
template <class T, int V>
__global__ void column_sums_kernel(const T* x, std::int64_t rows, std::int64_t columns, float* parts) {
  __shared__ float partial[kRows][kLanes][V];
  struct alignas(sizeof(T) * V) Vector {
    T at[V];
  };
  const std::int64_t column = (blockIdx.x * std::int64_t{kLanes} + threadIdx.x) * V;
  float sum[V] = {};
  if (column < columns) {
    const std::int64_t step = std::int64_t{gridDim.y} * kRows;
#pragma unroll 4
    for (std::int64_t row = std::int64_t{blockIdx.y} * kRows + threadIdx.y; row < rows; row += step) {
      const Vector v = *reinterpret_cast<const Vector*>(x + row * columns + column);
#pragma unroll
      for (int j = 0; j < V; ++j) sum[j] += static_cast<float>(v.at[j]);
    }
  }
#pragma unroll
  for (int j = 0; j < V; ++j) partial[threadIdx.y][threadIdx.x][j] = sum[j];
  __syncthreads();
  if (threadIdx.y == 0 && column < columns) {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      float total = 0;
      for (int row = 0; row < kRows; ++row) total += partial[row][threadIdx.x][j];
      parts[blockIdx.y * columns + column + j] = total;
    }
  }
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

template <class T>
__global__ void sum_parts_kernel(const float* parts, std::int64_t count, std::int64_t n, T* out, bool accumulate) {
  __shared__ float partial[kRows][kLanes];
  const std::int64_t i = blockIdx.x * std::int64_t{kLanes} + threadIdx.x;
  float sum = 0;
  if (i < n) {
#pragma unroll 4
    for (std::int64_t part = threadIdx.y; part < count; part += kRows) sum += parts[part * n + i];
  }
  partial[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || i >= n) return;
  float total = 0;
  for (int row = 0; row < kRows; ++row) total += partial[row][threadIdx.x];
  if (accumulate) total += static_cast<float>(out[i]);
  out[i] = T(total);
}

void bias_backward(const Tensor& dy, const Tensor& db, bool accumulate) {
  const Context& c = context(dy);
  const Channels s = channels_of(dy);
  // Enough blocks to fill the card twice, but no more partial sums than half the rows.
  const std::int64_t wanted = 2 * c.multiprocessors() * 8 / ((s.channels + kLanes - 1) / kLanes) + 1;
  const std::int64_t most = s.inner > 1 ? s.outer : (s.outer + 2 * kRows - 1) / (2 * kRows);
  const std::int64_t count = std::clamp<std::int64_t>(std::min(wanted, most), 1, 4096);
  const Tensor parts = Tensor::empty({count, s.channels}, {DType::f32, dy.device()});
  float* sums = pointer<float>(parts);
  dispatch_floating("bias backward", dy, [&]<class T>(T) {
    constexpr int kSize = Pack<T>::kSize;
    const auto blocks = [&](std::int64_t columns) {
      return dim3(static_cast<unsigned>((columns + kLanes - 1) / kLanes), static_cast<unsigned>(count));
    };
    const dim3 threads(kLanes, kRows);
    if (s.inner > 1) {
      const dim3 grid(static_cast<unsigned>(s.channels), static_cast<unsigned>(count));
      plane_sums_kernel<<<grid, kThreads, 0, c.stream()>>>(pointer<T>(dy), s.outer, s.inner, sums);
    } else if (packs<T>(dy, s.channels)) {
      column_sums_kernel<T, kSize>
          <<<blocks(s.channels / kSize), threads, 0, c.stream()>>>(pointer<T>(dy), s.outer, s.channels, sums);
    } else {
      column_sums_kernel<T, 1>
          <<<blocks(s.channels), threads, 0, c.stream()>>>(pointer<T>(dy), s.outer, s.channels, sums);
    }
  });
  CUTTLE_LAUNCHED("bias_backward");
  sum_parts(sums, count, db, accumulate);
}

}  // namespace

void add_bias(const Tensor& bias, const Tensor& y) {
  const Context& c = context(y);
  const Channels s = channels_of(y);
  const std::int64_t n = y.numel();
  dispatch_floating("bias", y, [&]<class T>(T) {
    constexpr int kSize = Pack<T>::kSize;
    if (s.inner == 1 && packs<T>(y, s.channels) && packs<T>(bias, s.channels)) {
      add_bias_packed_kernel<T><<<blocks_for(c, n / kSize), kThreads, 0, c.stream()>>>(
          pointer<Pack<T>>(bias), pointer<Pack<T>>(y), n / kSize, s.channels / kSize);
    } else {
      add_bias_kernel<<<blocks_for(c, n), kThreads, 0, c.stream()>>>(pointer<T>(bias), pointer<T>(y), n, s.channels,
                                                                     s.inner);
    }
  });
  CUTTLE_LAUNCHED("add_bias");
}

void sum_parts(const float* parts, std::int64_t count, const Tensor& out, bool accumulate) {
  const Context& c = context(out);
  const std::int64_t n = out.numel();
  dispatch_floating("sum of parts", out, [&]<class T>(T) {
    const auto blocks = static_cast<unsigned>((n + kLanes - 1) / kLanes);
    sum_parts_kernel<<<blocks, dim3(kLanes, kRows), 0, c.stream()>>>(parts, count, n, pointer<T>(out), accumulate);
  });
  CUTTLE_LAUNCHED("sum_parts");
}

void register_bias(Kernels& k) { k.bias_backward = bias_backward; }

}  // namespace cuttle::cuda
