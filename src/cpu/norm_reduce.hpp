#pragma once
#include <cstdint>
#include <vector>

#include "cpu/norm_channels.hpp"
#include "cuttle/tensor.hpp"

namespace cuttle::cpu {

struct ChannelMoments {
  std::vector<double> mean;
  std::vector<double> deviations;  ///< sum of (x - mean)^2
};
/// Over N,H,W of each channel of an NHWC tensor, f32 or f64.
ChannelMoments channel_moments(const Tensor& x);

struct GradientSums {
  std::vector<double> dy;           ///< sum of dy
  std::vector<double> dy_centered;  ///< sum of dy * (x - center)
};
/// Over N,H,W of each channel of NHWC tensors, f32 or f64.
GradientSums gradient_sums(const Tensor& dy, const Tensor& x, const std::vector<double>& center);

}  // namespace cuttle::cpu
