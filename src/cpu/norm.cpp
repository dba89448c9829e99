#include <cmath>

#include "cpu/dispatch.hpp"
#include "cpu/layout.hpp"
#include "cpu/norm_channels.hpp"
#include "cpu/norm_reduce.hpp"
#include "cpu/register.hpp"
#include "kernels.hpp"

/// Batch normalisation: Ioffe & Szegedy, "Batch Normalization" (2015), over N,H,W of each channel.
namespace cuttle::cpu {
namespace {

double per_channel_count(const Tensor& x) { return static_cast<double>(x.numel() / x.size(1)); }

std::vector<double> inverse_deviation(std::vector<double> variance, double eps) {
  for (double& value : variance) value = 1 / std::sqrt(value + eps);
  return variance;
}

std::vector<double> product(std::vector<double> a, const std::vector<double>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] *= b[i];
  return a;
}

/// x is NHWC, y of any layout.
void normalize(const Tensor& x, const ChannelAffine& affine, const Tensor& y) {
  const Tensor result = nhwc_scratch(y);
  dispatch_floating("batch_norm2d", x,
                    [&]<class T>(T) { apply_affine(x.data<T>(), affine, columns_of(x), writable<T>(result)); });
  from_nhwc(result, y);
}

/// y = clamp(y + residual): the passes that add and relu would make.
void activate(const Tensor& y, const Activation& act) {
  if (act.residual.defined()) kernels(y).add(y, act.residual, y);
  if (act.relu) kernels(y).relu(y, act.ceiling, y);
}

/// The gradient of bn(x) from that of y, which d_residual receives too where it is defined.
Tensor behind_clamp(const Tensor& dy, const Tensor& y, const Activation& act, const Tensor& d_residual) {
  if (!act.relu) {
    if (d_residual.defined() && d_residual.raw_data() != dy.raw_data()) kernels(dy).convert(dy, d_residual);
    return dy;
  }
  const Tensor gradient = d_residual.defined() ? d_residual : Tensor::empty(dy.shape(), dy.options());
  kernels(dy).relu_backward(y, dy, act.ceiling, gradient);
  return gradient;
}

/// running += momentum * (batch - running)
void move_towards(const Tensor& running, const std::vector<double>& batch, double momentum) {
  if (!running.defined()) return;
  std::vector<double> values = channel_values(running, static_cast<std::int64_t>(batch.size()), 0);
  for (std::size_t c = 0; c < values.size(); ++c) values[c] += momentum * (batch[c] - values[c]);
  store_channel_values(values, running);
}

/// From the statistics as they are stored, so that the backward finds the same elements clamped.
ChannelAffine affine_of(const Tensor& weight, const Tensor& bias, const Tensor& mean, const Tensor& inv_std) {
  const std::int64_t channels = mean.numel();
  return {channel_values(mean, channels, 0),
          product(channel_values(inv_std, channels, 1), channel_values(weight, channels, 1)),
          channel_values(bias, channels, 0)};
}

/// gradient may be dy.
template <class T>
void clamp_row(const T* x, const T* dy, const T* __restrict center, const T* __restrict scale,
               const T* __restrict shift, T ceiling, T* gradient, std::int64_t cols) {
  for (std::int64_t c = 0; c < cols; ++c) {
    const T y = (x[c] - center[c]) * scale[c] + shift[c];
    gradient[c] = y <= 0 || y >= ceiling ? 0 : dy[c];  // NaN passes
  }
}

/// behind_clamp without y: it is computed again from x. Both are NHWC.
Tensor behind_clamp_of(const Tensor& x, const ChannelAffine& affine, double ceiling, const Tensor& dy,
                       const Tensor& d_residual) {
  const Tensor gradient = d_residual.defined() ? nhwc_scratch(d_residual) : Tensor::empty(dy.shape(), dy.options());
  dispatch_floating("batch_norm2d backward", x, [&]<class T>(T) {
    const Columns at = columns_of(x);
    const std::vector<T> center = per_column<T>(affine.center, at), scale = per_column<T>(affine.scale, at),
                         shift = per_column<T>(affine.shift, at);
    parallel_for(at.rows, row_grain(at.cols), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t place = begin * at.cols; place < end * at.cols; place += at.cols) {
        clamp_row(x.data<T>() + place, dy.data<T>() + place, center.data(), scale.data(), shift.data(),
                  static_cast<T>(ceiling), writable<T>(gradient) + place, at.cols);
      }
    });
  });
  if (d_residual.defined()) from_nhwc(gradient, d_residual);
  return gradient;
}

void batch_norm_train(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                      const Tensor& running_var, const Tensor& batches, const BatchNorm2dOptions& options,
                      const Activation& act, const Tensor& y, const Tensor& mean, const Tensor& inv_std) {
  const double count = per_channel_count(x);
  const Tensor pixels = to_nhwc(x);
  ChannelMoments moments = channel_moments(pixels);
  std::vector<double> variance = moments.deviations, unbiased = moments.deviations;
  for (double& value : variance) value /= count;
  for (double& value : unbiased) value /= count - 1;
  move_towards(running_mean, moments.mean, options.momentum);
  move_towards(running_var, unbiased, options.momentum);
  if (batches.defined()) ++*writable<std::int64_t>(batches);

  store_channel_values(moments.mean, mean);
  store_channel_values(inverse_deviation(std::move(variance), options.eps), inv_std);
  normalize(pixels, affine_of(weight, bias, mean, inv_std), y);
  activate(y, act);
}

void batch_norm_eval(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                     const Tensor& running_var, double eps, const Activation& act, const Tensor& y) {
  const std::int64_t channels = x.size(1);
  normalize(
      to_nhwc(x),
      {channel_values(running_mean, channels, 0),
       product(inverse_deviation(channel_values(running_var, channels, 1), eps), channel_values(weight, channels, 1)),
       channel_values(bias, channels, 0)},
      y);
  activate(y, act);
}

/// dx = dy * dy_scale + (x - center) * x_scale + shift with the channel's values.
struct BackwardAffine {
  std::vector<double> dy_scale, center, x_scale, shift;
};

/// dx may be x: each case vectorises, and only where the compiler can tell which it is.
template <class T>
void backward_row(const T* __restrict dy, const T* x, const T* __restrict dy_scale, const T* __restrict center,
                  const T* __restrict x_scale, const T* __restrict shift, T* __restrict dx, std::int64_t cols) {
  const auto result = [&](T in, std::int64_t c) {
    return dy[c] * dy_scale[c] + (in - center[c]) * x_scale[c] + shift[c];
  };
  if (x == dx) {
    for (std::int64_t c = 0; c < cols; ++c) dx[c] = result(dx[c], c);
  } else {
    for (std::int64_t c = 0; c < cols; ++c) dx[c] = result(x[c], c);
  }
}

template <class T>
void apply_backward(const T* dy, const T* x, const BackwardAffine& affine, const Columns& at, T* dx) {
  const std::vector<T> dy_scale = per_column<T>(affine.dy_scale, at), center = per_column<T>(affine.center, at),
                       x_scale = per_column<T>(affine.x_scale, at), shift = per_column<T>(affine.shift, at);
  parallel_for(at.rows, row_grain(at.cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int64_t row = r * at.cols;
      backward_row(dy + row, x + row, dy_scale.data(), center.data(), x_scale.data(), shift.data(), dx + row, at.cols);
    }
  });
}

/// With xhat = (x - mean) * inv_std and g = dy * weight * inv_std:
/// dx = g - mean(g) - xhat * mean(g * xhat), d_weight = sum(dy * xhat), d_bias = sum(dy).
void batch_norm_train_backward(const Tensor& dy, const Tensor& dy2, const Tensor& x, const Tensor& y,
                               const Tensor& weight, const Tensor& bias, const Tensor& mean, const Tensor& inv_std,
                               const Activation& act, bool added, const Tensor& dx, const Tensor& d_residual,
                               const Tensor& d_weight, const Tensor& d_bias) {
  const std::int64_t channels = x.size(1);
  const double count = per_channel_count(x);
  if (dy2.defined()) kernels(dy).add(dy, dy2, d_residual);
  const Tensor pixels = to_nhwc(x), &given = dy2.defined() ? d_residual : dy;
  const ChannelAffine forward = affine_of(weight, bias, mean, inv_std);
  const Tensor gradient = act.relu && !added ? behind_clamp_of(pixels, forward, act.ceiling, to_nhwc(given), d_residual)
                                             : to_nhwc(behind_clamp(given, y, act, d_residual));
  const std::vector<double> deviation = channel_values(inv_std, channels, 1);
  BackwardAffine affine{forward.scale, forward.center, {}, {}};
  const GradientSums sums = gradient_sums(gradient, pixels, affine.center);
  for (std::size_t c = 0; c < deviation.size(); ++c) {
    affine.x_scale.push_back(-affine.dy_scale[c] * deviation[c] * deviation[c] * sums.dy_centered[c] / count);
    affine.shift.push_back(-affine.dy_scale[c] * sums.dy[c] / count);
  }
  store_channel_values(product(sums.dy_centered, deviation), d_weight);
  store_channel_values(sums.dy, d_bias);
  const Tensor result = nhwc_scratch(dx);
  dispatch_floating("batch_norm2d backward", x, [&]<class T>(T) {
    apply_backward(gradient.data<T>(), pixels.data<T>(), affine, columns_of(pixels), writable<T>(result));
  });
  from_nhwc(result, dx);
}

void batch_norm_eval_backward(const Tensor& dy, const Tensor& x, const Tensor& y, const Tensor& weight,
                              const Tensor& running_mean, const Tensor& running_var, double eps, const Activation& act,
                              const Tensor& dx, const Tensor& d_residual, const Tensor& d_weight,
                              const Tensor& d_bias) {
  const std::int64_t channels = x.size(1);
  const Tensor gradient = to_nhwc(behind_clamp(dy, y, act, d_residual));
  const std::vector<double> deviation = inverse_deviation(channel_values(running_var, channels, 1), eps);
  if (d_weight.defined() || d_bias.defined()) {
    const GradientSums sums = gradient_sums(gradient, to_nhwc(x), channel_values(running_mean, channels, 0));
    store_channel_values(product(sums.dy_centered, deviation), d_weight);
    store_channel_values(sums.dy, d_bias);
  }
  if (dx.defined()) {
    const std::vector<double> zero(static_cast<std::size_t>(channels), 0);
    normalize(gradient, {zero, product(deviation, channel_values(weight, channels, 1)), zero}, dx);
  }
}

}  // namespace

void register_norm(Kernels& k) {
  k.batch_norm_train = batch_norm_train;
  k.batch_norm_eval = batch_norm_eval;
  k.batch_norm_train_backward = batch_norm_train_backward;
  k.batch_norm_eval_backward = batch_norm_eval_backward;
}

}  // namespace cuttle::cpu
