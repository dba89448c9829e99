#include "kernels.hpp"

namespace cuttle {

/// CMake says why it left cuda/ out.
std::string register_cuda(Backend&) { return "this build has no CUDA support (" CUTTLE_WHY_NO_CUDA ")"; }

}  // namespace cuttle
