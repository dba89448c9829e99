#pragma once
#include "cuttle/ops.hpp"

namespace cuttle::ops {

/// relu_() with any ceiling above 0.
Tensor clamp_(Tensor x, double ceiling);

}  // namespace cuttle::ops
