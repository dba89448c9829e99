#pragma once
#include "kernels.hpp"

namespace cuttle::cuda {

/// The forward pass of a batch norm, in training or evaluation.
struct NormForward {
  const Tensor &x, &weight, &bias, &running_mean, &running_var;
  double eps;
  const Activation& act;
  const Tensor& y;
  // In training:
  bool training = false;
  double momentum = 0;
  Tensor batches = {}, mean = {}, inv_std = {};
};

/// The backward pass. `spread` is the inverse deviation of the batch or, where the statistics were constants, the
/// running variance.
struct NormBackward {
  const Tensor &dy, &x, &y, &weight, &bias, &mean, &spread;
  bool constant_statistics;
  double eps;
  const Activation& act;
  bool clamp_from_x;  ///< y is undefined: it depends on x alone, from which the clamp is told
  const Tensor &dx, &d_residual, &d_weight, &d_bias;
  Tensor dy2 = {};  ///< to be added to dy, rounded as the add kernel rounds; only with d_residual
};

void norm_forward_nhwc(const NormForward& call);
void norm_backward_nhwc(const NormBackward& call);
void norm_forward_nchw(const NormForward& call);
void norm_backward_nchw(const NormBackward& call);

}  // namespace cuttle::cuda
