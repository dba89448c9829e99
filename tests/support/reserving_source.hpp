#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>

#include "cuttle/memory.hpp"
#include "support/address_source.hpp"

namespace cuttle::test {

/// Addresses first, memory later, and neither is real. Ends the program where something is mapped twice, or unmapped
/// otherwise than it was mapped. `live` outlives the source: what is mapped, by address.
class ReservingSource final : public memory::MemorySource {
 public:
  using Live = AddressSource::Live;
  static constexpr std::size_t kGranularity = std::size_t{2} << 20;

  explicit ReservingSource(std::size_t reserved_bytes, std::shared_ptr<Live> live = std::make_shared<Live>())
      : reserved_bytes_(reserved_bytes), live_(std::move(live)) {}

  Addresses reserve() override {
    const std::uintptr_t begin = next_;
    next_ += 2 * reserved_bytes_;
    ++reservations;
    return {reinterpret_cast<void*>(begin), reserved_bytes_};
  }
  void unreserve(Addresses addresses) noexcept override {
    const auto* begin = static_cast<std::byte*>(addresses.begin);
    const auto inside = live_->lower_bound(begin);
    if (inside != live_->end() && inside->first < begin + addresses.bytes) std::terminate();
    --reservations;
  }
  bool map(void* address, std::size_t bytes, std::size_t piece_bytes) override {
    auto* const begin = static_cast<std::byte*>(address);
    if (bytes == 0 || bytes % kGranularity != 0 || reinterpret_cast<std::uintptr_t>(begin) % kGranularity != 0) {
      std::terminate();
    }
    const auto behind = live_->lower_bound(begin);
    if (behind != live_->end() && behind->first < begin + bytes) std::terminate();
    if (behind != live_->begin() && std::prev(behind)->first + std::prev(behind)->second > begin) std::terminate();
    for (std::size_t done = 0; done < bytes; done += piece_bytes) {
      live_->emplace(begin + done, std::min(bytes - done, piece_bytes));
    }
    return true;
  }
  void unmap(void* address, std::size_t bytes) noexcept override {
    const auto found = live_->find(static_cast<std::byte*>(address));
    if (found == live_->end() || found->second != bytes) std::terminate();
    live_->erase(found);
  }
  std::size_t granularity() const override { return kGranularity; }
  void* allocate(std::size_t bytes) override { return whole_.allocate(bytes); }
  void deallocate(void* pointer, std::size_t bytes) noexcept override { whole_.deallocate(pointer, bytes); }
  std::string name() const override { return "reserving"; }

  int reservations = 0;

 private:
  std::size_t reserved_bytes_;
  std::uintptr_t next_ = std::uintptr_t{1} << 44;
  std::shared_ptr<Live> live_;
  AddressSource whole_;
};

/// A card of `bytes` without memory behind it, on which addresses can be reserved.
inline std::unique_ptr<memory::MemorySource> reserving_card(std::size_t bytes) {
  return std::make_unique<memory::CappedSource>(std::make_unique<ReservingSource>(2 * bytes), bytes);
}

}  // namespace cuttle::test
