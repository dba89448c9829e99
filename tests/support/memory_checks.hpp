#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>

#include "cuttle/memory.hpp"

namespace cuttle::test {

/// What must hold at any moment: blocks tile their segment, no two neighbours of one pool are free, the statistics
/// agree.
inline void check_consistent(const memory::CachingAllocator& allocator) {
  std::uint64_t reserved = 0, allocated = 0, requested = 0, active = 0, free = 0, largest = 0;
  const auto segments = allocator.snapshot();
  const std::byte* end_of_last = nullptr;
  for (const memory::SegmentInfo& segment : segments) {
    const auto* at = static_cast<const std::byte*>(segment.address);
    REQUIRE(at >= end_of_last);
    const memory::BlockInfo* before = nullptr;
    for (const memory::BlockInfo& block : segment.blocks) {
      REQUIRE(block.address == at);
      REQUIRE(block.bytes > 0);
      REQUIRE_FALSE((before && !before->allocated && !block.allocated && before->pool == block.pool));
      REQUIRE(block.requested_bytes <= block.bytes);
      at += block.bytes;
      before = &block;
      requested += block.requested_bytes;
      if (block.allocated) {
        ++active;
        allocated += block.bytes;
      } else {
        ++free;
        largest = std::max<std::uint64_t>(largest, block.bytes);
      }
    }
    end_of_last = static_cast<const std::byte*>(segment.address) + segment.bytes;
    REQUIRE(at == end_of_last);
    reserved += segment.bytes;
  }
  const memory::Stats stats = allocator.stats();
  REQUIRE(stats.segments >= segments.size());
  REQUIRE(stats.reserved_bytes == reserved);
  REQUIRE(stats.allocated_bytes == allocated);
  REQUIRE(stats.requested_bytes == requested);
  REQUIRE(stats.active_blocks == active);
  REQUIRE(stats.free_blocks == free);
  REQUIRE(stats.largest_free_block_bytes == largest);
  REQUIRE(stats.allocations - stats.frees == active);
  REQUIRE(stats.source_allocations - stats.source_frees == stats.segments);
}

}  // namespace cuttle::test
