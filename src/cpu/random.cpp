#include "cpu/register.hpp"
#include "kernels.hpp"

namespace cuttle::cpu {

void register_random(Kernels&) {}

}  // namespace cuttle::cpu
