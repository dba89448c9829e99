#pragma once
#include <memory>
#include <string>
#include <vector>

#include "cuttle/device.hpp"
#include "cuttle/memory.hpp"

namespace cuttle::cuda {

/// Why no CUDA device can be used: no driver, driver too old, no card, cuDNN of another major version. Empty if one can.
std::string why_unusable();
std::vector<DeviceInfo> list_devices();
std::unique_ptr<memory::MemorySource> make_source(int index);

}  // namespace cuttle::cuda
