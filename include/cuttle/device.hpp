#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cuttle {

enum class DeviceKind : std::uint8_t { cpu, cuda };

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;

  /// "cpu", "cuda", "cuda:N" or "auto" (= best_device()). Throws UsageError on anything else, DeviceError where there
  /// is no such device.
  static Device parse(std::string_view text);
  std::string str() const;
  bool is_cpu() const { return kind == DeviceKind::cpu; }
  bool is_cuda() const { return kind == DeviceKind::cuda; }
  friend bool operator==(Device, Device) = default;
};

inline constexpr Device kCpu{};

struct DeviceInfo {
  Device device;
  std::string name;               ///< processor or card, as the system calls it
  std::uint64_t total_bytes = 0;  ///< memory of the device
  std::uint64_t free_bytes = 0;   ///< of which nobody holds
};

/// Devices of this kind; empty where there are none (never throws for want of a GPU).
std::vector<DeviceInfo> devices(DeviceKind kind);
/// Why there is no CUDA device: "built without CUDA", "no driver" and so on; empty when there is one.
std::string why_no_cuda();
/// The GPU with the most free memory, or the CPU when there is none.
Device best_device();
/// Waits until all work queued on the device is done.
void synchronize(Device device);
/// CPU worker threads for kernels, the calling thread included. 0 means all cores.
void set_num_threads(int n);
int num_threads();

}  // namespace cuttle
