#pragma once
#include "kernels.hpp"

namespace cuttle::cuda {

// Parts of register_elementwise, one a file.
void register_convert(Kernels& k);
void register_sums(Kernels& k);
void register_images(Kernels& k);

}  // namespace cuttle::cuda
