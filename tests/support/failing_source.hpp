#pragma once
#include <cstddef>
#include <limits>
#include <memory>

#include "cuttle/memory.hpp"

namespace cuttle::test {

/// Passes on to another source, but has no room at call number `first` (from 1) and the `count - 1` calls after it.
class FailingSource final : public memory::MemorySource {
 public:
  static constexpr std::size_t kForever = std::numeric_limits<std::size_t>::max();

  FailingSource(std::unique_ptr<memory::MemorySource> base, std::size_t first, std::size_t count = 1)
      : base_(std::move(base)), first_(first), count_(count) {}

  void* allocate(std::size_t bytes) override { return fails() ? nullptr : base_->allocate(bytes); }
  void deallocate(void* pointer, std::size_t bytes) noexcept override { base_->deallocate(pointer, bytes); }
  std::string name() const override { return "failing " + base_->name(); }
  std::optional<memory::SourceUsage> usage() const override { return base_->usage(); }
  Addresses reserve() override { return base_->reserve(); }
  void unreserve(Addresses addresses) noexcept override { base_->unreserve(addresses); }
  bool map(void* address, std::size_t bytes, std::size_t piece_bytes) override {
    return !fails() && base_->map(address, bytes, piece_bytes);
  }
  void unmap(void* address, std::size_t bytes) noexcept override { base_->unmap(address, bytes); }
  std::size_t granularity() const override { return base_->granularity(); }

 private:
  bool fails() {
    ++calls_;
    return calls_ >= first_ && calls_ - first_ < count_;
  }

  std::unique_ptr<memory::MemorySource> base_;
  std::size_t first_, count_, calls_ = 0;
};

}  // namespace cuttle::test
