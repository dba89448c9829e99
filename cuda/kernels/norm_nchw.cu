#include "cuda/kernels/last_block.cuh"
#include "cuda/kernels/norm.hpp"
#include "cuda/kernels/vec.cuh"

/// Batch norm of NCHW tensors, for studying the algorithms of that layout: one block a channel, sums in double.
namespace cuttle::cuda {

namespace {

/// The elements of one channel, numbered over N and H*W.
struct ChannelView {
  std::int64_t images, pixels, channels;

  __device__ std::int64_t count() const { return images * pixels; }
  __device__ std::int64_t place(std::int64_t i, std::int64_t channel) const {
    return (i / pixels * channels + channel) * pixels + i % pixels;
  }
};

ChannelView view_of(const Tensor& x) { return {x.size(0), x.size(2) * x.size(3), x.size(1)}; }

/// Both sums over the block, in every thread.
__device__ void sum_block(double (&sums)[2], double* shared) {
  sum_rows<2>(sums, shared, static_cast<int>(threadIdx.x), kThreads, 1);
  if (threadIdx.x == 0) shared[0] = sums[0], shared[1] = sums[1];
  __syncthreads();
  sums[0] = shared[0], sums[1] = shared[1];
  __syncthreads();
}

/// Forward and backward must round alike, so that the backward finds the same elements clamped.
__device__ float normalized(float x, float mean, float scale, float shift) {
  return __fmaf_rn(__fsub_rn(x, mean), scale, shift);
}

struct ForwardPointers {
  const float *weight, *bias;
  float *running_mean, *running_var, *mean, *inv_std;
  std::int64_t* batches;
  bool training;
  double momentum, eps;
  float low, high;
};

template <class T>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const T* x, const T* residual, T* y, ChannelView view, ForwardPointers p) {
  __shared__ double shared[2 * kThreads];
  const double count = static_cast<double>(view.count());
  for (std::int64_t channel = blockIdx.x; channel < view.channels; channel += gridDim.x) {
    double mean = 0, variance = 0;
    if (p.training) {
      const double first = static_cast<double>(static_cast<float>(x[view.place(0, channel)]));
      double sums[2] = {};
      for (std::int64_t i = threadIdx.x; i < view.count(); i += kThreads) {
        const double distance = static_cast<double>(static_cast<float>(x[view.place(i, channel)])) - first;
        sums[0] += distance;
        sums[1] += distance * distance;
      }
      sum_block(sums, shared);
      const double distance = sums[0] / count;
      mean = first + distance;
      variance = sums[1] / count - distance * distance;
      if (variance < 0) variance = 0;
    } else {
      mean = p.running_mean[channel];
      variance = p.running_var[channel];
    }
    const double inv_std = 1 / sqrt(variance + p.eps);
    if (p.training && threadIdx.x == 0) {
      p.mean[channel] = static_cast<float>(mean);
      p.inv_std[channel] = static_cast<float>(inv_std);
      if (p.running_mean) {
        float &running_mean = p.running_mean[channel], &running_var = p.running_var[channel];
        running_mean = static_cast<float>(running_mean + p.momentum * (mean - running_mean));
        running_var = static_cast<float>(running_var + p.momentum * (variance * count / (count - 1) - running_var));
      }
    }
    const auto center = static_cast<float>(mean);
    const float scale = (p.weight ? p.weight[channel] : 1.0f) * static_cast<float>(inv_std);
    const float shift = p.bias ? p.bias[channel] : 0.0f;
    for (std::int64_t i = threadIdx.x; i < view.count(); i += kThreads) {
      const std::int64_t place = view.place(i, channel);
      float value = normalized(static_cast<float>(x[place]), center, scale, shift);
      if (residual) value += static_cast<float>(residual[place]);
      y[place] = T(value < p.low ? p.low : value > p.high ? p.high : value);  // NaN stays
    }
  }
  if (p.training && p.batches && blockIdx.x == 0 && threadIdx.x == 0) ++*p.batches;
}

struct BackwardPointers {
  const float *weight, *bias, *mean, *spread;
  float *d_weight, *d_bias;
  bool constant_statistics, relu;
  double eps;
  float ceiling;
};

template <class T>
__global__ void __launch_bounds__(kThreads) backward_kernel(const T* dy, const T* dy2, const T* x, const T* y, T* dx,
                                                            T* d_residual, ChannelView view, BackwardPointers p) {
  __shared__ double shared[2 * kThreads];
  const double count = static_cast<double>(view.count());
  for (std::int64_t channel = blockIdx.x; channel < view.channels; channel += gridDim.x) {
    const float mean = p.mean[channel], spread = p.spread[channel], shift = p.bias ? p.bias[channel] : 0.0f;
    const double inv_std = p.constant_statistics ? 1 / sqrt(spread + p.eps) : static_cast<double>(spread);
    const double scale = (p.weight ? p.weight[channel] : 1.0f) * inv_std;
    const auto gradient_at = [&](std::int64_t place) {
      float gradient = static_cast<float>(dy[place]);
      if (dy2) gradient = static_cast<float>(T(gradient + static_cast<float>(dy2[place])));
      if (!p.relu) return gradient;
      const T output =
          y ? y[place] : T(normalized(static_cast<float>(x[place]), mean, static_cast<float>(scale), shift));
      const auto value = static_cast<float>(output);
      return value <= 0 || value >= p.ceiling ? 0.0f : gradient;  // NaN passes
    };
    double sums[2] = {};
    for (std::int64_t i = threadIdx.x; i < view.count(); i += kThreads) {
      const std::int64_t place = view.place(i, channel);
      const double gradient = gradient_at(place);
      sums[0] += gradient;
      sums[1] += gradient * (static_cast<double>(static_cast<float>(x[place])) - mean);
    }
    sum_block(sums, shared);
    if (threadIdx.x == 0) {
      if (p.d_bias) p.d_bias[channel] = static_cast<float>(sums[0]);
      if (p.d_weight) p.d_weight[channel] = static_cast<float>(sums[1] * inv_std);
    }
    const auto dy_scale = static_cast<float>(scale);
    const auto added = p.constant_statistics ? 0.0f : static_cast<float>(-scale * sums[0] / count);
    const auto x_scale =
        p.constant_statistics ? 0.0f : static_cast<float>(-scale * inv_std * inv_std * sums[1] / count);
    for (std::int64_t i = threadIdx.x; i < view.count(); i += kThreads) {
      const std::int64_t place = view.place(i, channel);
      const float gradient = gradient_at(place);
      if (dx) dx[place] = T(gradient * dy_scale + ((static_cast<float>(x[place]) - mean) * x_scale + added));
      if (d_residual) d_residual[place] = T(gradient);  // behind all reads of this place: it may be dy
    }
  }
}

unsigned blocks_of(const ChannelView& view) {
  constexpr std::int64_t kMost = 65535;
  return static_cast<unsigned>(std::min(view.channels, kMost));
}

}  // namespace

void norm_forward_nchw(const NormForward& call) {
  constexpr float kNone = std::numeric_limits<float>::infinity();
  const Activation& act = call.act;
  const ForwardPointers p{pointer_or_null<float>(call.weight),
                          pointer_or_null<float>(call.bias),
                          pointer_or_null<float>(call.running_mean),
                          pointer_or_null<float>(call.running_var),
                          pointer_or_null<float>(call.mean),
                          pointer_or_null<float>(call.inv_std),
                          pointer_or_null<std::int64_t>(call.batches),
                          call.training,
                          call.momentum,
                          call.eps,
                          act.relu ? 0 : -kNone,
                          act.relu ? static_cast<float>(act.ceiling) : kNone};
  const ChannelView view = view_of(call.x);
  dispatch_floating("batch_norm2d", call.x, [&]<class T>(T) {
    forward_kernel<<<blocks_of(view), kThreads, 0, context(call.x).stream()>>>(
        pointer<T>(call.x), pointer_or_null<T>(act.residual), pointer<T>(call.y), view, p);
  });
  CUTTLE_LAUNCHED("batch norm (NCHW)");
}

void norm_backward_nchw(const NormBackward& call) {
  const BackwardPointers p{pointer_or_null<float>(call.weight),
                           pointer_or_null<float>(call.bias),
                           pointer<float>(call.mean),
                           pointer<float>(call.spread),
                           pointer_or_null<float>(call.d_weight),
                           pointer_or_null<float>(call.d_bias),
                           call.constant_statistics,
                           call.act.relu,
                           call.eps,
                           static_cast<float>(call.act.ceiling)};
  const ChannelView view = view_of(call.x);
  dispatch_floating("batch_norm2d backward", call.x, [&]<class T>(T) {
    backward_kernel<<<blocks_of(view), kThreads, 0, context(call.x).stream()>>>(
        pointer<T>(call.dy), pointer_or_null<T>(call.dy2), pointer<T>(call.x), pointer_or_null<T>(call.y),
        pointer_or_null<T>(call.dx), pointer_or_null<T>(call.d_residual), view, p);
  });
  CUTTLE_LAUNCHED("batch norm backward (NCHW)");
}

}  // namespace cuttle::cuda
