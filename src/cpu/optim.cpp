#include "cpu/register.hpp"
#include "kernels.hpp"

namespace cuttle::cpu {

void register_optim(Kernels&) {}

}  // namespace cuttle::cpu
