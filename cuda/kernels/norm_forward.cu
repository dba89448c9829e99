#include "cuda/kernels/norm_nhwc.cuh"
#include "cuda/runtime/counters.hpp"

namespace cuttle::cuda {

namespace {

constexpr int kBlocksEach = 4;  // of a multiprocessor

struct Statistics {
  float *mean, *inv_std, *running_mean, *running_var;  // running_* may be null
  std::int64_t* batches;                               // may be null
  double momentum, eps;
  double per_value, unbiased;  ///< 1/n and n/(n-1): the block that merges is waited for, and divisions in f64 are slow

  __device__ void set(int channel, double value, double variance) const {
    mean[channel] = static_cast<float>(value);
    inv_std[channel] = 1.0f / sqrtf(static_cast<float>(variance + eps));
    if (!running_mean) return;
    move(running_mean[channel], value);
    move(running_var[channel], variance * unbiased);
  }
  __device__ void move(float& running, double batch) const {
    running = static_cast<float>(running + momentum * (batch - running));
  }
};

/// Mean and variance of each channel from sums of distances to the channel's first value, which loses no digits where
/// the mean is large beside the deviation. Threads sum in float, blocks are added up in double.
template <class T, int V>
__global__ void __launch_bounds__(kThreads, kBlocksEach)
    statistics_kernel(const T* x, NormMatrix m, float* partials, unsigned* counters, Statistics out) {
  constexpr int kAtOnce = 4;
  __shared__ alignas(16) char shared[kNormShared<V>];
  const NormPlace<V> at(m);
  float sums[2 * V] = {};
  if (at.active) {
    const Vec<T, V> first = load<V>(x + at.channel);
    const T* from = x + (at.begin + at.row) * m.channels + at.channel;
    std::int64_t row = at.begin + at.row;
    for (; row + (kAtOnce - 1) * m.height < at.end; row += kAtOnce * m.height, from += kAtOnce * at.stride) {
      Vec<T, V> v[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) v[k] = load<V>(from + k * at.stride);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const float shift = static_cast<float>(first.at[j]);
        float sum = 0, squares = 0;
#pragma unroll
        for (int k = 0; k < kAtOnce; ++k) {
          const float distance = static_cast<float>(v[k].at[j]) - shift;
          sum += distance;
          squares += distance * distance;
        }
        sums[j] += sum;
        sums[V + j] += squares;
      }
    }
    for (; row < at.end; row += m.height, from += at.stride) {
      const Vec<T, V> v = load<V>(from);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const float distance = static_cast<float>(v.at[j]) - static_cast<float>(first.at[j]);
        sums[j] += distance;
        sums[V + j] += distance * distance;
      }
    }
  }
  store_partials<V>(m, at, sums, reinterpret_cast<float*>(shared), partials);
  if (!is_last_block(counters + blockIdx.x, gridDim.y)) return;
  merge_partials<V>(m, partials, reinterpret_cast<double*>(shared), [&](int channel, double sum, double squares) {
    const double distance = sum * out.per_value, variance = squares * out.per_value - distance * distance;
    out.set(channel, static_cast<double>(static_cast<float>(x[channel])) + distance, variance < 0 ? 0 : variance);
  });
  if (out.batches && blockIdx.x == 0 && threadIdx.x == 0) ++*out.batches;
}

/// y = clamp((x - mean) * scale + shift + residual), from the last row of the range to the first.
template <class T, int V, bool kResidual>
__global__ void __launch_bounds__(kThreads, kBlocksEach)
    apply_kernel(const T* x, const T* residual, T* y, NormMatrix m, NormConstants constants, float low, float high) {
  constexpr int kAtOnce = kResidual ? 2 : 4;
  const NormPlace<V> at(m);
  if (!at.active) return;
  float mean[V], scale[V], shift[V];
#pragma unroll
  for (int j = 0; j < V; ++j) {
    mean[j] = constants.mean[at.channel + j];
    scale[j] = constants.scale(at.channel + j);
    shift[j] = constants.shift(at.channel + j);
  }
  const auto finish = [&](const Vec<T, V>& in, const Vec<T, V>& added, T* to) {
    Vec<T, V> out;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      float value = normalized(static_cast<float>(in.at[j]), mean[j], scale[j], shift[j]);
      if constexpr (kResidual) value += static_cast<float>(added.at[j]);
      out.at[j] = T(value < low ? low : value > high ? high : value);  // NaN stays
    }
    store<V>(to, out);
  };
  std::int64_t row = at.end - 1 - at.row, place = row * m.channels + at.channel;
  for (; row - (kAtOnce - 1) * m.height >= at.begin; row -= kAtOnce * m.height, place -= kAtOnce * at.stride) {
    Vec<T, V> in[kAtOnce], added[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      in[k] = load<V>(x + place - k * at.stride);
      if constexpr (kResidual) added[k] = load<V>(residual + place - k * at.stride);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) finish(in[k], added[k], y + place - k * at.stride);
  }
  for (; row >= at.begin; row -= m.height, place -= at.stride) {
    const Vec<T, V> in = load<V>(x + place);
    Vec<T, V> added;
    if constexpr (kResidual) added = load<V>(residual + place);
    finish(in, added, y + place);
  }
}

}  // namespace

void norm_forward_nhwc(const NormForward& call) {
  const Context& c = context(call.x);
  const Tensor &mean = call.training ? call.mean : call.running_mean,
               &spread = call.training ? call.inv_std : call.running_var;
  const NormConstants constants{pointer<float>(mean),
                                pointer<float>(spread),
                                pointer_or_null<float>(call.weight),
                                pointer_or_null<float>(call.bias),
                                !call.training,
                                static_cast<float>(call.eps)};
  constexpr float kNone = std::numeric_limits<float>::infinity();
  const float low = call.act.relu ? 0 : -kNone, high = call.act.relu ? static_cast<float>(call.act.ceiling) : kNone;
  dispatch_channels(call.x, {&call.x, &call.y, &call.act.residual},
                    [&]<class T, int V>(T, std::integral_constant<int, V>) {
                      const auto [matrix, blocks] = norm_grid(c, call.x, V, kBlocksEach);
                      if (call.training) {
                        const Tensor partials = norm_scratch(call.x, std::int64_t{2} * blocks.y * matrix.channels);
                        const auto values = static_cast<double>(matrix.rows);
                        const Statistics out{pointer<float>(call.mean),
                                             pointer<float>(call.inv_std),
                                             pointer_or_null<float>(call.running_mean),
                                             pointer_or_null<float>(call.running_var),
                                             pointer_or_null<std::int64_t>(call.batches),
                                             call.momentum,
                                             call.eps,
                                             1 / values,
                                             values / (values - 1)};
                        statistics_kernel<T, V><<<blocks, kThreads, 0, c.stream()>>>(
                            pointer<T>(call.x), matrix, pointer<float>(partials), block_counters(c, blocks.x), out);
                        CUTTLE_LAUNCHED("batch norm statistics");
                      }
                      const T* residual = pointer_or_null<T>(call.act.residual);
                      const auto kernel = residual ? apply_kernel<T, V, true> : apply_kernel<T, V, false>;
                      kernel<<<blocks, kThreads, 0, c.stream()>>>(pointer<T>(call.x), residual, pointer<T>(call.y),
                                                                  matrix, constants, low, high);
                      CUTTLE_LAUNCHED("batch norm");
                    });
}

}  // namespace cuttle::cuda
