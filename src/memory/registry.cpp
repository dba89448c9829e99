#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>

#include "cuttle/error.hpp"
#include "cuttle/memory.hpp"
#include "kernels.hpp"

namespace cuttle::memory {
namespace {

constexpr int kKinds = 2;
constexpr int kMaxDevices = 64;  // of one kind; the largest single hosts have 16

/// Never destroyed: tensors in static storage give their memory back after main.
std::array<std::array<std::atomic<CachingAllocator*>, kMaxDevices>, kKinds> allocators{};
std::mutex creation;

CachingAllocator& create(Device device) {
  const std::vector<DeviceInfo> present = backend(device.kind).devices();
  const bool known = std::ranges::any_of(present, [&](const DeviceInfo& info) { return info.device == device; });
  if (!known || device.index >= kMaxDevices) {
    throw DeviceError(fmt::format("there is no device {} with index {} to allocate on",
                                  device.is_cpu() ? "cpu" : "cuda", device.index),
                      "cuttle doctor lists the devices");
  }
  const std::lock_guard lock(creation);
  std::atomic<CachingAllocator*>& slot = allocators[static_cast<std::size_t>(device.kind)][device.index];
  if (CachingAllocator* made = slot.load(std::memory_order_acquire)) return *made;
  auto* made = new CachingAllocator(backend(device.kind).make_source(device.index), device);
  slot.store(made, std::memory_order_release);
  return *made;
}

}  // namespace

CachingAllocator& allocator(Device device) {
  if (device.index >= 0 && device.index < kMaxDevices) {
    const auto& slot = allocators[static_cast<std::size_t>(device.kind)][device.index];
    if (CachingAllocator* made = slot.load(std::memory_order_acquire)) return *made;
  }
  return create(device);
}

}  // namespace cuttle::memory

namespace cuttle {

std::uint64_t empty_cache() {
  std::uint64_t released = 0;
  for (const auto& kind : memory::allocators) {
    for (const auto& slot : kind) {
      if (memory::CachingAllocator* made = slot.load(std::memory_order_acquire)) released += made->empty_cache();
    }
  }
  return released;
}

}  // namespace cuttle
