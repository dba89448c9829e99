#include "cpu/cpu_info.hpp"

#include <fmt/format.h>

#include <Eigen/Core>
#include <fstream>

namespace cuttle::cpu {

std::string eigen_version() {
  return fmt::format("{}.{}.{}", EIGEN_WORLD_VERSION, EIGEN_MAJOR_VERSION, EIGEN_MINOR_VERSION);
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "cpu";  // other processors than x86 do not say
}

std::string simd_instructions() { return Eigen::SimdInstructionSetsInUse(); }

}  // namespace cuttle::cpu
