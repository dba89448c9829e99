#pragma once
#include <cstdint>
#include <optional>
#include <string>

namespace cuttle::cuda {

struct NvmlMemory {
  std::uint64_t free_bytes = 0, total_bytes = 0, used_bytes = 0;
};

/// What NVML says of the card with this PCI bus id ("0000:3B:00.0"), or nothing where the library or the right to ask
/// is missing. NVML is opened at run time: a machine without the driver still starts the program.
std::optional<NvmlMemory> nvml_memory(const std::string& pci_bus_id);
/// The driver's version, "580.159.04", or empty.
std::string nvml_driver_version();

}  // namespace cuttle::cuda
