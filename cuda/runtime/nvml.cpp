#include "cuda/runtime/nvml.hpp"

#include <dlfcn.h>

#include <array>

namespace cuttle::cuda {

namespace {

// The few declarations of NVML's stable C interface that are used, so that its header is not needed to build.
using NvmlDevice = void*;
struct NvmlMemoryV1 {
  unsigned long long total, free, used;
};
struct NvmlMemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
constexpr unsigned kMemoryVersion2 = sizeof(NvmlMemoryV2) | 2u << 24;
constexpr int kNvmlSuccess = 0;

struct Nvml {
  int (*init)() = nullptr;
  int (*device_by_bus_id)(const char*, NvmlDevice*) = nullptr;
  int (*memory_info)(NvmlDevice, NvmlMemoryV1*) = nullptr;
  int (*memory_info_v2)(NvmlDevice,
                        NvmlMemoryV2*) = nullptr;  // drivers from 510; only it keeps the driver's share apart
  int (*driver_version)(char*, unsigned) = nullptr;
  bool ready = false;

  Nvml() {
    void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    load(library, "nvmlInit_v2", init);
    load(library, "nvmlDeviceGetHandleByPciBusId_v2", device_by_bus_id);
    load(library, "nvmlDeviceGetMemoryInfo", memory_info);
    load(library, "nvmlDeviceGetMemoryInfo_v2", memory_info_v2);
    load(library, "nvmlSystemGetDriverVersion", driver_version);
    ready = init && device_by_bus_id && memory_info && driver_version && init() == kNvmlSuccess;
  }

  template <class Function> static void load(void* library, const char* name, Function& function) {
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
  if (!nvml().ready || nvml().device_by_bus_id(pci_bus_id.c_str(), &device) != kNvmlSuccess) return std::nullopt;
  NvmlMemoryV2 v2{};
  v2.version = kMemoryVersion2;
  if (nvml().memory_info_v2 && nvml().memory_info_v2(device, &v2) == kNvmlSuccess) {
    return NvmlMemory{v2.free, v2.total, v2.used};
  }
  NvmlMemoryV1 v1{};
  if (nvml().memory_info(device, &v1) != kNvmlSuccess) return std::nullopt;
  return NvmlMemory{v1.free, v1.total, v1.used};
}

std::string nvml_driver_version() {
  std::array<char, 96> text{};
  if (!nvml().ready || nvml().driver_version(text.data(), text.size()) != kNvmlSuccess) return {};
  return text.data();
}

}  // namespace cuttle::cuda
