#pragma once
#include <string>

namespace cuttle::cpu {

std::string processor_name();     ///< as the system calls it
std::string eigen_version();      ///< "3.4.0"
std::string simd_instructions();  ///< that the kernels were compiled for: "AVX512, FMA, AVX2..."

}  // namespace cuttle::cpu
