#pragma once
#include "cuttle/ops.hpp"

namespace cuttle::ops {

/// relu_() with any ceiling above 0.
Tensor clamp_(Tensor x, double ceiling);

/// normalize_images() into `out`, whose dtype says what the result is rounded to.
void normalize_images_into(const Tensor& out, const Tensor& images, const Tensor& mean, const Tensor& stddev,
                           const Tensor& windows);

}  // namespace cuttle::ops
