#include "cpu/register.hpp"
#include "kernels.hpp"

namespace cuttle::cpu {

void register_pool(Kernels&) {}

}  // namespace cuttle::cpu
