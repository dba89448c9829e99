#include "cpu/register.hpp"
#include "kernels.hpp"

namespace cuttle::cpu {

void register_conv(Kernels&) {}

}  // namespace cuttle::cpu
