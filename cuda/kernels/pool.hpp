#pragma once
#include "kernels.hpp"

namespace cuttle::cuda {

// Parts of register_pool, one a file.
void register_max_pool(Kernels& k);
void register_avg_pool(Kernels& k);

}  // namespace cuttle::cuda
