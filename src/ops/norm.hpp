#pragma once
#include "cuttle/ops.hpp"

namespace cuttle::ops {

/// cuttle::batch_norm2d that also counts up `batches` (i64 scalar, may be undefined) while training, in the same
/// kernel.
Tensor batch_norm2d(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor running_mean, Tensor running_var,
                    const Tensor& batches, const BatchNorm2dOptions& options, const Activation& then);

}  // namespace cuttle::ops
