#include "cpu/register.hpp"
#include "kernels.hpp"

namespace cuttle::cpu {

void register_elementwise(Kernels&) {}

}  // namespace cuttle::cpu
