#include "cpu/register.hpp"
#include "kernels.hpp"

namespace cuttle::cpu {

void register_norm(Kernels&) {}

}  // namespace cuttle::cpu
