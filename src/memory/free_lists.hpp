#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "memory/block.hpp"
#include "memory/caching_allocator.hpp"

namespace cuttle::memory {

/// Free blocks by size: one list a size class, and bitmaps that tell which lists hold anything. Classes are exact up to
/// 63 rounding units (31.5 KiB) and 1/32 of a power of two wide above; each list is sorted by size, so the first
/// block that fits in the first class that fits is the best fit.
class FreeLists {
 public:
  void insert(Block* block) noexcept;
  void remove(Block* block) noexcept;
  /// The smallest block of at least `bytes` bytes, the one freed last among equals; nullptr when there is none.
  Block* best_fit(std::size_t bytes) const noexcept;
  std::size_t largest_bytes() const noexcept;
  std::size_t count() const noexcept { return count_; }

 private:
  static constexpr int kSubclassBits = 5;
  static constexpr int kSubclasses = 1 << kSubclassBits;
  static constexpr int kOctaves = kMaxBlockBits - kRoundingBits - kSubclassBits + 2;

  static int size_class(std::size_t bytes) noexcept;
  /// The first class >= `first` with a block in it, or -1.
  int next_filled_class(int first) const noexcept;

  std::uint64_t filled_octaves_ = 0;              // bit o: octave o has a non-empty list
  std::array<std::uint32_t, kOctaves> filled_{};  // bit s of filled_[o]: list s of octave o is not empty
  std::array<Block*, kOctaves * kSubclasses> heads_{};
  std::size_t count_ = 0;
  static_assert(kOctaves <= 64 && kSubclasses <= 32);
};

}  // namespace cuttle::memory
