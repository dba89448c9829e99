#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "cuttle/memory.hpp"

namespace cuttle::memory {

struct Pool;
struct Segment;

/// A stretch of a segment: in use by a caller, in a free list, or addresses without memory.
struct Block {
  enum class State : std::uint8_t { free, allocated, unmapped };

  std::byte* address = nullptr;
  std::size_t bytes = 0;
  std::size_t requested_bytes = 0;
  Segment* segment = nullptr;
  Pool* pool = nullptr;                                  ///< whose it is; null if unmapped
  Block *previous = nullptr, *next = nullptr;            ///< neighbours by address within the segment
  Block *free_previous = nullptr, *free_next = nullptr;  ///< links of the free list
  State state = State::free;

  std::byte* end() const { return address + bytes; }
};

/// Recycles Block structs, so that a cached allocation never reaches the system's heap.
class BlockSlab {
 public:
  /// Makes the next `count` calls of take() unable to fail. Throws std::bad_alloc.
  void reserve(std::size_t count) {
    while (available_ < count) {
      chunks_.emplace_back(new Block[kChunk]);
      for (std::size_t i = 0; i < kChunk; ++i) give_back(&chunks_.back()[i]);
    }
  }
  Block* take() noexcept {
    Block* block = head_;
    head_ = block->free_next;
    --available_;
    *block = Block{};
    return block;
  }
  void give_back(Block* block) noexcept {
    block->free_next = head_;
    head_ = block;
    ++available_;
  }

 private:
  static constexpr std::size_t kChunk = 128;  // about 10 KiB at once: a small network needs one chunk
  std::vector<std::unique_ptr<Block[]>> chunks_;
  Block* head_ = nullptr;
  std::size_t available_ = 0;
};

}  // namespace cuttle::memory
