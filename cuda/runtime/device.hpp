#pragma once
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/runtime/nvml.hpp"
#include "cuttle/device.hpp"
#include "cuttle/memory.hpp"

namespace cuttle::cuda {

/// Why no CUDA device can be used: no driver, driver too old, no card. Empty if one can.
std::string why_unusable();
std::vector<DeviceInfo> list_devices();
std::unique_ptr<memory::MemorySource> make_source(int index);
/// Name and version of the driver and of each library, for `cuttle doctor`.
std::vector<std::pair<std::string, std::string>> facts();

std::string device_name(int index);
/// The card's memory as NVML sees it, without making a context; nothing where NVML does not answer for this device.
std::optional<NvmlMemory> card_usage(int index);

}  // namespace cuttle::cuda
