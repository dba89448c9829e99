#include "cpu/cpu_info.hpp"

#include <fmt/format.h>

#include <Eigen/Core>

namespace cuttle::cpu {

std::string eigen_version() {
  return fmt::format("{}.{}.{}", EIGEN_WORLD_VERSION, EIGEN_MAJOR_VERSION, EIGEN_MINOR_VERSION);
}

std::string simd_instructions() { return Eigen::SimdInstructionSetsInUse(); }

}  // namespace cuttle::cpu
