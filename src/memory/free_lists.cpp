#include "memory/free_lists.hpp"

#include <bit>

namespace cuttle::memory {

int FreeLists::size_class(std::size_t bytes) noexcept {
  const std::uint64_t units = bytes >> kRoundingBits;
  if (units < kSubclasses) return static_cast<int>(units);
  const int shift = std::bit_width(units) - 1 - kSubclassBits;
  return (shift + 1) * kSubclasses + static_cast<int>(units >> shift) - kSubclasses;
}

int FreeLists::next_filled_class(int first) const noexcept {
  const int octave = first / kSubclasses;
  if (octave >= kOctaves) return -1;
  const std::uint32_t here = filled_[octave] & (~std::uint32_t{0} << (first % kSubclasses));
  if (here) return octave * kSubclasses + std::countr_zero(here);
  const std::uint64_t above = octave + 1 < 64 ? filled_octaves_ & (~std::uint64_t{0} << (octave + 1)) : 0;
  if (!above) return -1;
  const int next = std::countr_zero(above);
  return next * kSubclasses + std::countr_zero(filled_[next]);
}

void FreeLists::insert(Block* block) noexcept {
  const int c = size_class(block->bytes);
  Block* after = heads_[c];
  Block* before = nullptr;
  while (after && after->bytes < block->bytes) {
    before = after;
    after = after->free_next;
  }
  block->free_previous = before;
  block->free_next = after;
  (before ? before->free_next : heads_[c]) = block;
  if (after) after->free_previous = block;
  filled_[c / kSubclasses] |= std::uint32_t{1} << (c % kSubclasses);
  filled_octaves_ |= std::uint64_t{1} << (c / kSubclasses);
  ++count_;
}

void FreeLists::remove(Block* block) noexcept {
  if (block->free_next) block->free_next->free_previous = block->free_previous;
  --count_;
  if (block->free_previous) {
    block->free_previous->free_next = block->free_next;
    return;
  }
  const int c = size_class(block->bytes);
  heads_[c] = block->free_next;
  if (heads_[c]) return;
  filled_[c / kSubclasses] &= ~(std::uint32_t{1} << (c % kSubclasses));
  if (!filled_[c / kSubclasses]) filled_octaves_ &= ~(std::uint64_t{1} << (c / kSubclasses));
}

Block* FreeLists::best_fit(std::size_t bytes) const noexcept {
  const int c = size_class(bytes);
  for (Block* block = heads_[c]; block; block = block->free_next) {
    if (block->bytes >= bytes) return block;
  }
  const int larger = next_filled_class(c + 1);
  return larger < 0 ? nullptr : heads_[larger];
}

std::size_t FreeLists::largest_bytes() const noexcept {
  if (!filled_octaves_) return 0;
  const int octave = std::bit_width(filled_octaves_) - 1;
  const Block* block = heads_[octave * kSubclasses + std::bit_width(filled_[octave]) - 1];
  while (block->free_next) block = block->free_next;
  return block->bytes;
}

}  // namespace cuttle::memory
