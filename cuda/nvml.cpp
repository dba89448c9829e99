#include "cuda/nvml.hpp"

#include <dlfcn.h>

#include <array>

namespace cuttle::cuda {

namespace {

// The few declarations of NVML's stable C interface that are used, so that its header is not needed to build.
using NvmlDevice = void*;
struct NvmlMemoryV1 {
  unsigned long long total, free, used;
};
constexpr int kNvmlSuccess = 0;

struct Nvml {
  int (*init)() = nullptr;
  int (*device_by_bus_id)(const char*, NvmlDevice*) = nullptr;
  int (*memory_info)(NvmlDevice, NvmlMemoryV1*) = nullptr;
  int (*driver_version)(char*, unsigned) = nullptr;
  bool ready = false;

  Nvml() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    load(library, "nvmlInit_v2", init);
    load(library, "nvmlDeviceGetHandleByPciBusId_v2", device_by_bus_id);
    load(library, "nvmlDeviceGetMemoryInfo", memory_info);
    load(library, "nvmlSystemGetDriverVersion", driver_version);
    ready = init && device_by_bus_id && memory_info && driver_version && init() == kNvmlSuccess;
  }

  template <class Function>
  static void load(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
  }
};

const Nvml& nvml() {
  static const Nvml library;
  return library;
}

}  // namespace

std::optional<NvmlMemory> nvml_memory(const std::string& pci_bus_id) {
  NvmlDevice device = nullptr;
  NvmlMemoryV1 memory{};
  if (!nvml().ready || nvml().device_by_bus_id(pci_bus_id.c_str(), &device) != kNvmlSuccess ||
      nvml().memory_info(device, &memory) != kNvmlSuccess) {
    return std::nullopt;
  }
  return NvmlMemory{memory.free, memory.total, memory.used};
}

std::string nvml_driver_version() {
  std::array<char, 96> text{};
  if (!nvml().ready || nvml().driver_version(text.data(), text.size()) != kNvmlSuccess) return {};
  return text.data();
}

}  // namespace cuttle::cuda
