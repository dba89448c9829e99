#include "cpu/register.hpp"
#include "kernels.hpp"

namespace cuttle::cpu {

void register_linear(Kernels&) {}

}  // namespace cuttle::cpu
