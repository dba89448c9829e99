#pragma once
#include <cstddef>
#include <memory>

#include "cuttle/memory.hpp"

namespace cuttle::cuda {

/// Addresses of one device, and memory to put behind them, by the driver's own interface: the runtime has none for it.
/// The device must be the current one of the thread. See memory::MemorySource for what each call does.
class VirtualMemory {
 public:
  /// Null where the driver or the card cannot do it, found out by trying.
  static std::unique_ptr<VirtualMemory> of(int device);

  memory::MemorySource::Addresses reserve() const;
  void unreserve(memory::MemorySource::Addresses addresses) const noexcept;
  /// Throws DeviceError where something else than memory is missing.
  bool map(void* address, std::size_t bytes, std::size_t piece_bytes) const;
  /// No queued work may use it any more.
  void unmap(void* address, std::size_t bytes) const noexcept;
  std::size_t granularity() const { return granularity_; }

 private:
  VirtualMemory(int device, std::size_t granularity, std::size_t range_bytes)
      : device_(device), granularity_(granularity), range_bytes_(range_bytes) {}

  int device_;
  std::size_t granularity_, range_bytes_;
};

}  // namespace cuttle::cuda
