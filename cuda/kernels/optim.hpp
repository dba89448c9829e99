#pragma once
#include "kernels.hpp"

namespace cuttle::cuda {

/// global_norm, clip_by_norm and gradient_factor.
void register_gradient_norm(Kernels& k);

}  // namespace cuttle::cuda
