#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_set>
#include <vector>

#include "cuttle/memory.hpp"
#include "memory/out_of_memory.hpp"
#include "memory/segment.hpp"

namespace cuttle::memory {

/// Where memory can be added so that a block has room.
struct Place {
  Block* unmapped = nullptr;                  ///< its first bytes get memory; null: a segment has to be allocated whole
  Block *before = nullptr, *after = nullptr;  ///< free neighbours that count on
  std::size_t bytes = 0;                      ///< the least that must be added

  bool uses(const Block* block) const { return block == before || block == after; }
};

/// An extent that can go, and the free block that holds it.
struct Spare {
  Block* block = nullptr;
  Extent extent;
};

/// The work behind CachingAllocator's calls, each of which holds the lock. Blocks are found and made in
/// caching_allocator.cpp, memory comes and goes in growth.cpp.
struct CachingAllocator::Impl {
  mutable std::mutex mutex;
  std::unique_ptr<MemorySource> source;
  Device device;
  std::optional<std::uint64_t> limit;
  std::vector<std::unique_ptr<Pool>> pools;
  std::vector<std::unique_ptr<Segment>> segments;
  std::unordered_set<PoolId> private_pools;  // created and not yet released
  PoolId last_pool_id = 0;
  bool reserves_addresses = true;  // as far as is known
  BlockSlab slab;
  Stats counters;  // the fields that are kept up to date; stats() fills in the rest
  std::function<void(const Event&)> hook;

  ~Impl();

  Block* allocate(std::size_t bytes, Stream stream, PoolId pool_id);
  void free(Block* block) noexcept;
  Pool& pool_of(Stream stream, PoolId id);
  Block* best_fit(Pool& pool, bool is_small, std::size_t bytes);
  void occupy(Block* block, Pool& pool, std::size_t bytes, std::size_t requested_bytes) noexcept;
  void release_private_pool(PoolId id);

  static constexpr std::size_t kMostNewBlocks = 3;  ///< of one request: of a new segment, of mapping, of its own
  Block* grow(Pool& pool, bool is_small, std::size_t bytes);
  Place cheapest_place(const Pool& pool, bool is_small, std::size_t bytes);
  Place cheapest_reserved_place(const Pool& pool, bool is_small, std::size_t bytes) const;
  bool reserve_segment(const Pool& pool, bool is_small, std::size_t bytes);
  Block* extend(Pool& pool, const Place& place);
  bool map(Segment& segment, std::byte* address, std::size_t bytes, const Pool& pool);
  Block* add_whole_segment(Pool& pool, bool is_small, std::size_t bytes);
  Block* add_whole_segment_of(Pool& pool, bool is_small, std::size_t bytes);
  std::unique_ptr<Segment> blank_segment(Stream stream, bool is_small);
  Block& add_segment(std::unique_ptr<Segment> segment, void* address, std::size_t bytes) noexcept;
  void count_extent(const Extent& extent, const Pool& pool);

  Spare cheapest_spare(std::uint64_t bytes, const Place& keep) const;
  std::uint64_t spare_bytes(const Place& keep) const;
  template <class Use> void for_each_spare(const Place& keep, Use&& use) const;
  bool release_for(const Place& place);
  std::uint64_t release_at_least(std::uint64_t bytes, const Place& keep);
  void release(const Spare& spare);
  void unmap(Segment& segment, const Extent& extent) noexcept;

  Stats stats() const;
  std::vector<SegmentInfo> snapshot() const;
  OutOfMemoryError out_of_memory(std::size_t bytes, Stream stream, PoolId pool_id);
  void report(Event::Kind kind, const void* address, std::size_t bytes, Stream stream, PoolId pool) const {
    if (hook) hook({kind, address, bytes, stream, pool});
  }
};

}  // namespace cuttle::memory
