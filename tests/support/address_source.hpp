#pragma once
#include <cstdint>
#include <map>
#include <memory>

#include "cuttle/memory.hpp"

namespace cuttle::test {

/// Gives out addresses with no memory behind them, so that a test can play a card of any size. `live` outlives the
/// source: what the allocator has not given back is still in it.
class AddressSource final : public memory::MemorySource {
 public:
  using Live = std::map<const std::byte*, std::size_t>;

  explicit AddressSource(std::shared_ptr<Live> live = std::make_shared<Live>()) : live_(std::move(live)) {}

  void* allocate(std::size_t bytes) override {
    auto* address = reinterpret_cast<std::byte*>(next_);
    next_ += (bytes / kAlignment + 2) * kAlignment;  // a gap, so that two segments never look like one
    live_->emplace(address, bytes);
    return address;
  }
  void deallocate(void* pointer, std::size_t bytes) noexcept override {
    const auto found = live_->find(static_cast<std::byte*>(pointer));
    if (found == live_->end() || found->second != bytes) std::terminate();  // never given out, or of another size
    live_->erase(found);
  }
  std::string name() const override { return "addresses"; }

 private:
  static constexpr std::uintptr_t kAlignment = 256;
  std::uintptr_t next_ = std::uintptr_t{1} << 40;
  std::shared_ptr<Live> live_;
};

inline constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

/// A card of `bytes` without memory behind it.
inline std::unique_ptr<memory::MemorySource> card(std::size_t bytes) {
  return std::make_unique<memory::CappedSource>(std::make_unique<AddressSource>(), bytes);
}

}  // namespace cuttle::test
