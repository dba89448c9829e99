#pragma once
#include "kernels.hpp"

namespace cuttle::cuda {

// One function a family: each fills its slots of the table.
void register_elementwise(Kernels& k);
void register_random(Kernels& k);
void register_conv(Kernels& k);
void register_linear(Kernels& k);
void register_pool(Kernels& k);
void register_norm(Kernels& k);
void register_classify(Kernels& k);
void register_optim(Kernels& k);

}  // namespace cuttle::cuda
