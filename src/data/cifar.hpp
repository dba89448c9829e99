#pragma once
#include <string>

#include "cuttle/data.hpp"

namespace cuttle::data {

/// Whether a folder holds files of CIFAR-10's binary version.
bool is_cifar10(const std::string& directory);

}  // namespace cuttle::data
