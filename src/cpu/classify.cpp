#include "cpu/register.hpp"
#include "kernels.hpp"

namespace cuttle::cpu {

void register_classify(Kernels&) {}

}  // namespace cuttle::cpu
