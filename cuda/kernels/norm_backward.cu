#include "cuda/kernels/norm_nhwc.cuh"
#include "cuda/runtime/counters.hpp"

namespace cuttle::cuda {

namespace {

constexpr int kBlocksEach = 3;  // of a multiprocessor
constexpr int kAtOnce = 2;      // rows of a thread whose loads are on their way together

/// How a kernel knows which elements the forward clamped.
enum class Clamp { none, from_x, from_y };

/// Of V channels, in registers.
template <int V> struct ChannelRegisters {
  float mean[V], scale[V], shift[V];

  __device__ ChannelRegisters(const NormConstants& constants, int channel) {
#pragma unroll
    for (int j = 0; j < V; ++j) {
      mean[j] = constants.mean[channel + j];
      scale[j] = constants.scale(channel + j);
      shift[j] = constants.shift(channel + j);
    }
  }
};

/// The gradient behind the clamp for channel j. y is read only where the clamp is told from it.
template <Clamp kClamp, class T, int V>
__device__ float behind_clamp(float dy, float x, T y, const ChannelRegisters<V>& channel, int j, float ceiling) {
  if constexpr (kClamp == Clamp::none) return dy;
  float output = static_cast<float>(y);
  if constexpr (kClamp == Clamp::from_x) {
    output = static_cast<float>(T(normalized(x, channel.mean[j], channel.scale[j], channel.shift[j])));
  }
  return output <= 0 || output >= ceiling ? 0.0f : dy;  // NaN passes
}

/// What the last block of a tile of channels makes of the sums of dy and dy * (x - mean).
struct GradientSums {
  NormConstants constants;
  bool constant_statistics;
  float *d_weight, *d_bias;  ///< may be null
  float* factors;            ///< [2][channels], of the second pass
  double per_value;          ///< 1 / values of a channel

  __device__ void set(int channel, int channels, double sum, double products) const {
    const double deviation = constants.inv_std(channel), scale = constants.scale(channel);
    if (d_bias) d_bias[channel] = static_cast<float>(sum);
    if (d_weight) d_weight[channel] = static_cast<float>(products * deviation);
    factors[channel] = constant_statistics ? 0 : static_cast<float>(-scale * sum * per_value);
    factors[channels + channel] =
        constant_statistics ? 0 : static_cast<float>(-scale * deviation * deviation * products * per_value);
  }
};

/// First pass: d_residual (may be null, may be dy or dy2) and the sums. kTwo: the gradient is dy + dy2.
template <class T, int V, Clamp kClamp, bool kTwo>
__global__ void __launch_bounds__(kThreads, kBlocksEach)
    sums_kernel(const T* dy, const T* dy2, const T* x, const T* y, T* d_residual, NormMatrix m, float ceiling,
                float* partials, unsigned* counters, GradientSums out) {
  __shared__ alignas(16) char shared[kNormShared<V>];
  const NormPlace<V> at(m);
  float sums[2 * V] = {};
  if (at.active) {
    const ChannelRegisters<V> channel(out.constants, at.channel);
    const auto take = [&](const Vec<T, V>& g, const Vec<T, V>& g2, const Vec<T, V>& in, const Vec<T, V>& output,
                          std::int64_t place) {
      Vec<T, V> behind;
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const float value = static_cast<float>(in.at[j]);
        float given = static_cast<float>(g.at[j]);
        if constexpr (kTwo) given = static_cast<float>(T(given + static_cast<float>(g2.at[j])));  // as add would
        const float gradient = behind_clamp<kClamp>(given, value, output.at[j], channel, j, ceiling);
        sums[j] += gradient;
        sums[V + j] += gradient * (value - channel.mean[j]);
        behind.at[j] = T(gradient);
      }
      if (d_residual) store<V>(d_residual + place, behind);
    };
    std::int64_t row = at.begin + at.row, place = row * m.channels + at.channel;
    for (; row + (kAtOnce - 1) * m.height < at.end; row += kAtOnce * m.height, place += kAtOnce * at.stride) {
      Vec<T, V> g[kAtOnce], g2[kAtOnce], in[kAtOnce], output[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        g[k] = load<V>(dy + place + k * at.stride);
        if constexpr (kTwo) g2[k] = load<V>(dy2 + place + k * at.stride);
        in[k] = load<V>(x + place + k * at.stride);
        if constexpr (kClamp == Clamp::from_y) output[k] = load<V>(y + place + k * at.stride);
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) take(g[k], g2[k], in[k], output[k], place + k * at.stride);
    }
    for (; row < at.end; row += m.height, place += at.stride) {
      const Vec<T, V> g = load<V>(dy + place), in = load<V>(x + place);
      Vec<T, V> g2, output;
      if constexpr (kTwo) g2 = load<V>(dy2 + place);
      if constexpr (kClamp == Clamp::from_y) output = load<V>(y + place);
      take(g, g2, in, output, place);
    }
  }
  store_partials<V>(m, at, sums, reinterpret_cast<float*>(shared), partials);
  if (!is_last_block(counters + blockIdx.x, gridDim.y)) return;
  merge_partials<V>(m, partials, reinterpret_cast<double*>(shared),
                    [&](int channel, double sum, double products) { out.set(channel, m.channels, sum, products); });
}

/// Second pass: dx = scale * dy + (x - mean) * factors[1] + factors[0], from the last row of the range to the first.
template <class T, int V, Clamp kClamp>
__global__ void __launch_bounds__(kThreads, kBlocksEach)
    dx_kernel(const T* dy, const T* x, const T* y, T* dx, NormMatrix m, NormConstants constants, float ceiling,
              const float* factors) {
  const NormPlace<V> at(m);
  if (!at.active) return;
  const ChannelRegisters<V> channel(constants, at.channel);
  float added[V], x_scale[V];
#pragma unroll
  for (int j = 0; j < V; ++j) {
    added[j] = factors[at.channel + j];
    x_scale[j] = factors[m.channels + at.channel + j];
  }
  const auto finish = [&](const Vec<T, V>& g, const Vec<T, V>& in, const Vec<T, V>& output, T* to) {
    Vec<T, V> out;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const float value = static_cast<float>(in.at[j]);
      const float gradient =
          behind_clamp<kClamp>(static_cast<float>(g.at[j]), value, output.at[j], channel, j, ceiling);
      out.at[j] = T(gradient * channel.scale[j] + ((value - channel.mean[j]) * x_scale[j] + added[j]));
    }
    store<V>(to, out);
  };
  std::int64_t row = at.end - 1 - at.row, place = row * m.channels + at.channel;
  for (; row - (kAtOnce - 1) * m.height >= at.begin; row -= kAtOnce * m.height, place -= kAtOnce * at.stride) {
    Vec<T, V> g[kAtOnce], in[kAtOnce], output[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      g[k] = load<V>(dy + place - k * at.stride);
      in[k] = load<V>(x + place - k * at.stride);
      if constexpr (kClamp == Clamp::from_y) output[k] = load<V>(y + place - k * at.stride);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) finish(g[k], in[k], output[k], dx + place - k * at.stride);
  }
  for (; row >= at.begin; row -= m.height, place -= at.stride) {
    const Vec<T, V> g = load<V>(dy + place), in = load<V>(x + place);
    Vec<T, V> output;
    if constexpr (kClamp == Clamp::from_y) output = load<V>(y + place);
    finish(g, in, output, dx + place);
  }
}

template <class Body> void dispatch_clamp(Clamp clamp, Body&& body) {
  switch (clamp) {
    case Clamp::none: return body(std::integral_constant<Clamp, Clamp::none>());
    case Clamp::from_x: return body(std::integral_constant<Clamp, Clamp::from_x>());
    case Clamp::from_y: return body(std::integral_constant<Clamp, Clamp::from_y>());
  }
}

}  // namespace

void norm_backward_nhwc(const NormBackward& call) {
  const Context& c = context(call.x);
  const NormConstants constants{
      pointer<float>(call.mean),         pointer<float>(call.spread), pointer_or_null<float>(call.weight),
      pointer_or_null<float>(call.bias), call.constant_statistics,    static_cast<float>(call.eps)};
  const auto ceiling = static_cast<float>(call.act.ceiling);
  const Clamp clamp = !call.act.relu ? Clamp::none : call.clamp_from_x ? Clamp::from_x : Clamp::from_y;
  dispatch_channels(
      call.x, {&call.dy, &call.dy2, &call.x, &call.y, &call.dx, &call.d_residual},
      [&]<class T, int V>(T, std::integral_constant<int, V>) {
        const auto [matrix, blocks] = norm_grid(c, call.x, V, kBlocksEach);
        const std::int64_t factor_count = std::int64_t{2} * matrix.channels;
        const Tensor partials = norm_scratch(call.x, factor_count * blocks.y),
                     factors = norm_scratch(call.x, factor_count);
        const GradientSums sums{constants,
                                call.constant_statistics,
                                pointer_or_null<float>(call.d_weight),
                                pointer_or_null<float>(call.d_bias),
                                pointer<float>(factors),
                                1.0 / static_cast<double>(matrix.rows)};
        const T *dy = pointer<T>(call.dy), *dy2 = pointer_or_null<T>(call.dy2), *x = pointer<T>(call.x),
                *y = pointer_or_null<T>(call.y);
        T* d_residual = pointer_or_null<T>(call.d_residual);
        dispatch_clamp(clamp, [&]<Clamp kClamp>(std::integral_constant<Clamp, kClamp>) {
          const auto kernel = dy2 ? sums_kernel<T, V, kClamp, true> : sums_kernel<T, V, kClamp, false>;
          kernel<<<blocks, kThreads, 0, c.stream()>>>(dy, dy2, x, y, d_residual, matrix, ceiling,
                                                      pointer<float>(partials), block_counters(c, blocks.x), sums);
          CUTTLE_LAUNCHED("batch norm backward sums");
        });
        if (!call.dx.defined()) return;
        // The residual's gradient is dy behind the clamp already.
        dispatch_clamp(d_residual ? Clamp::none : clamp, [&]<Clamp kClamp>(std::integral_constant<Clamp, kClamp>) {
          dx_kernel<T, V, kClamp><<<blocks, kThreads, 0, c.stream()>>>(d_residual ? d_residual : dy, x, y,
                                                                       pointer<T>(call.dx), matrix, constants, ceiling,
                                                                       pointer<float>(factors));
          CUTTLE_LAUNCHED("batch norm backward");
        });
      });
}

}  // namespace cuttle::cuda
