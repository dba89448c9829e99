#include <fmt/format.h>

#include <charconv>

#include "kernels.hpp"

namespace cuttle {
namespace {

struct Registry {
  Backend cpu, cuda;
  std::string why_no_cuda;
  Registry() {
    register_cpu(cpu);
    why_no_cuda = register_cuda(cuda);
  }
};

Registry& registry() {
  // Never destroyed: tensors in static storage give their memory back after main.
  static Registry* r = new Registry;
  return *r;
}

}  // namespace

Backend& backend(DeviceKind kind) {
  if (kind == DeviceKind::cpu) return registry().cpu;
  if (const std::string& why = registry().why_no_cuda; !why.empty()) {
    throw DeviceError("there is no CUDA device: " + why, "run with --device cpu");
  }
  return registry().cuda;
}

std::vector<DeviceInfo> devices(DeviceKind kind) {
  if (kind == DeviceKind::cuda && !why_no_cuda().empty()) return {};
  return backend(kind).devices();
}

std::string why_no_cuda() { return registry().why_no_cuda; }

Device best_device() {
  Device best = kCpu;
  std::uint64_t most = 0;
  for (const DeviceInfo& info : devices(DeviceKind::cuda)) {
    if (info.free_bytes > most) {
      most = info.free_bytes;
      best = info.device;
    }
  }
  return best;
}

void synchronize(Device device) { backend(device.kind).synchronize(device.index); }

std::string Device::str() const { return is_cpu() ? "cpu" : fmt::format("cuda:{}", index); }

Device Device::parse(std::string_view text) {
  if (text == "auto") return best_device();
  if (text == "cpu") return kCpu;
  if (text.substr(0, 4) == "cuda") {
    Device device{DeviceKind::cuda, 0};
    std::string_view rest = text.substr(4);
    bool valid = rest.empty();
    if (rest.size() > 1 && rest[0] == ':') {
      const auto [end, error] = std::from_chars(rest.data() + 1, rest.data() + rest.size(), device.index);
      valid = error == std::errc() && end == rest.data() + rest.size() && device.index >= 0;
    }
    if (valid) {
      const auto found = devices(DeviceKind::cuda);
      if (found.empty()) {
        throw DeviceError(fmt::format("device '{}' is not there: {}", text, why_no_cuda()), "run with --device cpu");
      }
      for (const DeviceInfo& info : found) {
        if (info.device == device) return device;
      }
      throw DeviceError(fmt::format("device '{}' is not there: this machine shows {} CUDA device{}", text, found.size(),
                                    found.size() == 1 ? "" : "s"),
                        "take cuda:0, or 'auto' for the one with the most free memory");
    }
  }
  throw UsageError(fmt::format("'{}' is not a device", text), "devices are auto, cpu, cuda and cuda:N");
}

}  // namespace cuttle
