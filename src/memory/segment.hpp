#pragma once
#include <cstddef>
#include <vector>

#include "cuttle/memory.hpp"
#include "memory/block.hpp"
#include "memory/caching_allocator.hpp"
#include "memory/free_lists.hpp"

namespace cuttle::memory {

/// The free blocks that one stream has under one pool id.
struct Pool {
  Stream stream = 0;
  PoolId id = 0;
  FreeLists small, large;

  FreeLists& lists(bool is_small) { return is_small ? small : large; }
};

/// Memory as the source gave it in one call.
struct Extent {
  std::byte* address = nullptr;
  std::size_t bytes = 0;

  std::byte* end() const { return address + bytes; }
};

/// Addresses tiled by blocks. Either one extent, or reserved addresses among which extents come and go, so that blocks
/// may span several.
struct Segment {
  std::byte* address = nullptr;
  std::size_t bytes = 0;
  Stream stream = 0;
  bool is_small = false;        ///< for small requests
  bool is_reserved = false;     ///< addresses first, memory extent by extent
  Block* first = nullptr;       ///< coalescing keeps the left block, so this one stays
  std::vector<Extent> extents;  ///< by address
  std::size_t position = 0;     ///< among the allocator's segments
};

/// The list of a free block.
inline FreeLists& lists_of(Block& block) { return block.pool->lists(block.segment->is_small); }

/// Keeps the first `bytes` bytes in `block`; the rest becomes a block that is like it in all but place, in no list.
inline Block* split(BlockSlab& slab, Block* block, std::size_t bytes) noexcept {
  Block* rest = slab.take();
  rest->address = block->address + bytes;
  rest->bytes = block->bytes - bytes;
  rest->segment = block->segment;
  rest->pool = block->pool;
  rest->state = block->state;
  rest->previous = block;
  rest->next = block->next;
  if (rest->next) rest->next->previous = rest;
  block->next = rest;
  block->bytes = bytes;
  return rest;
}

inline void absorb_next(BlockSlab& slab, Block* block) noexcept {
  Block* next = block->next;
  block->bytes += next->bytes;
  block->next = next->next;
  if (block->next) block->next->previous = block;
  slab.give_back(next);
}

/// Merges a block that is free or unmapped, and in no list, with neighbours of its kind; the result goes to its list.
inline Block* settle(BlockSlab& slab, Block* block) noexcept {
  const auto merges = [&](const Block* neighbour) {
    return neighbour && neighbour->state == block->state && neighbour->pool == block->pool;
  };
  const bool is_free = block->state == Block::State::free;
  if (merges(block->next)) {
    if (is_free) lists_of(*block->next).remove(block->next);
    absorb_next(slab, block);
  }
  if (Block* previous = block->previous; merges(previous)) {
    if (is_free) lists_of(*previous).remove(previous);
    absorb_next(slab, previous);
    block = previous;
  }
  if (is_free) lists_of(*block).insert(block);
  return block;
}

}  // namespace cuttle::memory
