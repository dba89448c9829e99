#include "kernels.hpp"

namespace cuttle {

std::string register_cuda(Backend&) { return "this build has no CUDA support"; }

}  // namespace cuttle
