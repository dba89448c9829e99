#include "memory/caching_allocator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <functional>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "cuttle/error.hpp"
#include "cuttle/memory.hpp"
#include "memory/block.hpp"
#include "memory/free_lists.hpp"
#include "memory/out_of_memory.hpp"

namespace cuttle::memory {

/// The free blocks of one stream within one pool id; blocks never move between pools.
struct Pool {
  Stream stream = 0;
  PoolId id = 0;
  FreeLists small, large;
  std::size_t segments = 0;

  FreeLists& lists(std::size_t block_bytes) { return is_small(block_bytes) ? small : large; }
};

/// Memory as the source gave it, tiled by blocks.
struct Segment {
  std::byte* address = nullptr;
  std::size_t bytes = 0;
  Pool* pool = nullptr;
  FreeLists* lists = nullptr;  // where its blocks go when they are free
  Block* first = nullptr;      // coalescing keeps the left block, so this one stays
  std::size_t position = 0;    // in Impl::segments
};

struct CachingAllocator::Impl {
  mutable std::mutex mutex;
  std::unique_ptr<MemorySource> source;
  Device device;
  std::optional<std::uint64_t> limit;
  std::vector<std::unique_ptr<Pool>> pools;
  std::vector<std::unique_ptr<Segment>> segments;
  std::unordered_set<PoolId> private_pools;  // created and not yet released
  PoolId last_pool_id = 0;
  BlockSlab slab;
  Stats counters;  // the fields that are kept up to date; stats() fills in the rest
  std::function<void(const Event&)> hook;

  Block* allocate(std::size_t bytes, Stream stream, PoolId pool_id);
  void free(Block* block) noexcept;

  Pool& pool_of(Stream stream, PoolId id);
  Block* grow(Pool& pool, std::size_t bytes);
  Block* add_segment_for(Pool& pool, std::size_t bytes);
  Block* add_segment(Pool& pool, std::size_t bytes, FreeLists& lists);
  void occupy(Block* block, std::size_t bytes, std::size_t requested_bytes) noexcept;
  void split(Block* block, std::size_t bytes) noexcept;
  void absorb_next(Block* block) noexcept;

  bool may_release(const Segment& segment) const;
  bool release_for(std::size_t bytes);
  std::uint64_t release_at_least(std::uint64_t bytes);
  Segment* cheapest_release(std::uint64_t bytes) const;
  std::uint64_t release_everything();
  void release(Segment& segment) noexcept;
  void drop_empty_private_pools() noexcept;

  Stats stats() const;
  OutOfMemoryError out_of_memory(std::size_t bytes, Stream stream, PoolId pool_id);
  void report(Event::Kind kind, const void* address, std::size_t bytes, Stream stream, PoolId pool) const {
    if (hook) hook({kind, address, bytes, stream, pool});
  }
};

// Allocation

Block* CachingAllocator::Impl::allocate(std::size_t bytes, Stream stream, PoolId pool_id) {
  if (bytes == 0) throw UsageError("a block of 0 bytes was requested", "an empty tensor needs no block");
  Pool& pool = pool_of(stream, pool_id);
  if (bytes > kMaxBlockBytes) throw out_of_memory(bytes, stream, pool_id);
  slab.reserve(2);  // one for a new segment, one for a split: nothing below fails half-way
  const std::size_t rounded = round_up(bytes, kRounding);
  Block* block = pool.lists(rounded).best_fit(rounded);
  if (!block) block = grow(pool, rounded);
  // A small request would rather break a large block than fail.
  if (!block) block = pool.large.best_fit(rounded);
  if (!block) throw out_of_memory(bytes, stream, pool_id);
  occupy(block, rounded, bytes);
  return block;
}

Pool& CachingAllocator::Impl::pool_of(Stream stream, PoolId id) {
  if (id != 0 && !private_pools.contains(id)) {
    throw UsageError(fmt::format("there is no private memory pool {}", id), "take one from create_private_pool()");
  }
  for (const auto& pool : pools) {
    if (pool->stream == stream && pool->id == id) return *pool;
  }
  Pool& pool = *pools.emplace_back(std::make_unique<Pool>());
  pool.stream = stream;
  pool.id = id;
  return pool;
}

/// A free block of at least `bytes` bytes in a new segment, or nullptr where the source and the limit leave no room
/// even after giving back what is cached.
Block* CachingAllocator::Impl::grow(Pool& pool, std::size_t bytes) {
  Block* block = add_segment_for(pool, bytes);
  while (!block && release_for(bytes)) {
    ++counters.retries;
    block = add_segment_for(pool, bytes);
  }
  return block;
}

/// A segment of the usual size, or of exactly `bytes` where the usual one does not fit.
Block* CachingAllocator::Impl::add_segment_for(Pool& pool, std::size_t bytes) {
  const std::size_t usual = segment_bytes(bytes, counters.reserved_bytes);
  Block* block = add_segment(pool, usual, pool.lists(bytes));
  return block || usual == bytes ? block : add_segment(pool, bytes, pool.lists(bytes));
}

Block* CachingAllocator::Impl::add_segment(Pool& pool, std::size_t bytes, FreeLists& lists) {
  if (limit && counters.reserved_bytes + bytes > *limit) return nullptr;
  segments.reserve(segments.size() + 1);  // nothing may fail once the source has given memory
  auto segment = std::make_unique<Segment>();
  auto* address = static_cast<std::byte*>(source->allocate(bytes));
  if (!address) return nullptr;

  Block* block = slab.take();
  block->address = address;
  block->bytes = bytes;
  block->segment = segment.get();
  *segment = {address, bytes, &pool, &lists, block, segments.size()};
  segments.push_back(std::move(segment));
  lists.insert(block);

  ++pool.segments;
  ++counters.source_allocations;
  counters.reserved_bytes += bytes;
  counters.peak_reserved_bytes = std::max(counters.peak_reserved_bytes, counters.reserved_bytes);
  report(Event::Kind::segment_allocate, address, bytes, pool.stream, pool.id);
  return block;
}

void CachingAllocator::Impl::occupy(Block* block, std::size_t bytes, std::size_t requested_bytes) noexcept {
  block->segment->lists->remove(block);
  // Even a remainder that no request would fit in is split off: it merges with the next block once that is free.
  if (block->bytes > bytes) split(block, bytes);
  block->allocated = true;
  block->requested_bytes = requested_bytes;

  ++counters.allocations;
  ++counters.active_blocks;
  counters.requested_bytes += requested_bytes;
  counters.allocated_bytes += block->bytes;
  counters.peak_allocated_bytes = std::max(counters.peak_allocated_bytes, counters.allocated_bytes);
  report(Event::Kind::allocate, block->address, block->bytes, block->segment->pool->stream, block->segment->pool->id);
}

/// Keeps the first `bytes` bytes in `block`; the rest becomes a free block.
void CachingAllocator::Impl::split(Block* block, std::size_t bytes) noexcept {
  Block* rest = slab.take();
  rest->address = block->address + bytes;
  rest->bytes = block->bytes - bytes;
  rest->segment = block->segment;
  rest->previous = block;
  rest->next = block->next;
  if (rest->next) rest->next->previous = rest;
  block->next = rest;
  block->bytes = bytes;
  rest->segment->lists->insert(rest);
}

void CachingAllocator::Impl::free(Block* block) noexcept {
  assert(block->allocated);
  const Pool& pool = *block->segment->pool;
  ++counters.frees;
  --counters.active_blocks;
  counters.requested_bytes -= block->requested_bytes;
  counters.allocated_bytes -= block->bytes;
  report(Event::Kind::free, block->address, block->bytes, pool.stream, pool.id);

  FreeLists& lists = *block->segment->lists;
  block->allocated = false;
  block->requested_bytes = 0;
  if (Block* next = block->next; next && !next->allocated) {
    lists.remove(next);
    absorb_next(block);
  }
  if (Block* previous = block->previous; previous && !previous->allocated) {
    lists.remove(previous);
    absorb_next(previous);
    block = previous;
  }
  lists.insert(block);
}

void CachingAllocator::Impl::absorb_next(Block* block) noexcept {
  Block* next = block->next;
  block->bytes += next->bytes;
  block->next = next->next;
  if (block->next) block->next->previous = block;
  slab.give_back(next);
}

// Giving segments back

bool CachingAllocator::Impl::may_release(const Segment& segment) const {
  // A captured graph replays into its pool's addresses without asking, so free blocks there are not unused.
  const PoolId id = segment.pool->id;
  return segment.first->spans_segment() && !segment.first->allocated && (id == 0 || !private_pools.contains(id));
}

/// Gives back cached segments so that another try for `bytes` more can succeed; false when that cannot help. Under a
/// limit it gives back no more than it must; when it is the source that refuses, what would help is unknown and all
/// goes.
bool CachingAllocator::Impl::release_for(std::size_t bytes) {
  if (!limit || counters.reserved_bytes + bytes <= *limit) return release_everything() > 0;
  std::uint64_t cached = 0;
  for (const auto& segment : segments) cached += may_release(*segment) ? segment->bytes : 0;
  const std::uint64_t needed = counters.reserved_bytes + bytes - *limit;
  return cached >= needed && release_at_least(needed) >= needed;
}

std::uint64_t CachingAllocator::Impl::release_at_least(std::uint64_t bytes) {
  std::uint64_t released = 0;
  while (released < bytes) {
    Segment* segment = cheapest_release(bytes - released);
    if (!segment) break;
    released += segment->bytes;
    release(*segment);
  }
  drop_empty_private_pools();
  return released;
}

/// The smallest cached segment of at least `bytes` bytes, else the largest one; nullptr where nothing is cached.
Segment* CachingAllocator::Impl::cheapest_release(std::uint64_t bytes) const {
  Segment* best = nullptr;
  for (const auto& segment : segments) {
    if (!may_release(*segment)) continue;
    const bool enough = segment->bytes >= bytes;
    const bool better =
        !best || (best->bytes >= bytes ? enough && segment->bytes < best->bytes : segment->bytes > best->bytes);
    if (better) best = segment.get();
  }
  return best;
}

std::uint64_t CachingAllocator::Impl::release_everything() {
  std::uint64_t released = 0;
  for (std::size_t i = segments.size(); i-- > 0;) {  // from the back: release() moves the last one into the gap
    if (!may_release(*segments[i])) continue;
    released += segments[i]->bytes;
    release(*segments[i]);
  }
  drop_empty_private_pools();
  return released;
}

void CachingAllocator::Impl::release(Segment& segment) noexcept {
  Pool& pool = *segment.pool;
  segment.lists->remove(segment.first);
  slab.give_back(segment.first);
  source->deallocate(segment.address, segment.bytes);

  --pool.segments;
  ++counters.source_frees;
  counters.reserved_bytes -= segment.bytes;
  report(Event::Kind::segment_free, segment.address, segment.bytes, pool.stream, pool.id);

  const std::size_t position = segment.position;
  segments[position].swap(segments.back());
  segments[position]->position = position;
  segments.pop_back();
}

void CachingAllocator::Impl::drop_empty_private_pools() noexcept {
  std::erase_if(pools, [this](const auto& pool) {
    return pool->id != 0 && pool->segments == 0 && !private_pools.contains(pool->id);
  });
}

// Figures

Stats CachingAllocator::Impl::stats() const {
  Stats s = counters;
  s.segments = segments.size();
  for (const auto& pool : pools) {
    for (const FreeLists* lists : {&pool->small, &pool->large}) {
      s.free_blocks += lists->count();
      s.largest_free_block_bytes = std::max<std::uint64_t>(s.largest_free_block_bytes, lists->largest_bytes());
    }
  }
  const std::uint64_t free_bytes = s.reserved_bytes - s.allocated_bytes;
  if (free_bytes > 0) {
    s.fragmentation = 1 - static_cast<double>(s.largest_free_block_bytes) / static_cast<double>(free_bytes);
  }
  return s;
}

OutOfMemoryError CachingAllocator::Impl::out_of_memory(std::size_t bytes, Stream stream, PoolId pool_id) {
  ++counters.out_of_memory;
  report(Event::Kind::out_of_memory, nullptr, bytes, stream, pool_id);
  std::uint64_t free_elsewhere = 0;
  for (const auto& segment : segments) {
    if (segment->pool->stream == stream && segment->pool->id == pool_id) continue;
    for (const Block* block = segment->first; block; block = block->next) {
      free_elsewhere += block->allocated ? 0 : block->bytes;
    }
  }
  return out_of_memory_error({device, bytes, stats(), limit, source->usage(), free_elsewhere});
}

// The public face: each call takes the lock and does the work above

CachingAllocator::CachingAllocator(std::unique_ptr<MemorySource> source, Device device) : impl_(new Impl) {
  impl_->source = std::move(source);
  impl_->device = device;
}

CachingAllocator::~CachingAllocator() {
  for (const auto& segment : impl_->segments) impl_->source->deallocate(segment->address, segment->bytes);
}

Block* CachingAllocator::allocate(std::size_t bytes, Stream stream, PoolId pool) {
  const std::lock_guard lock(impl_->mutex);
  return impl_->allocate(bytes, stream, pool);
}

void CachingAllocator::free(Block* block) noexcept {
  if (!block) return;
  const std::lock_guard lock(impl_->mutex);
  impl_->free(block);
}

void* CachingAllocator::pointer(const Block* block) noexcept { return block->address; }
std::size_t CachingAllocator::size(const Block* block) noexcept { return block->bytes; }

std::uint64_t CachingAllocator::empty_cache() {
  const std::lock_guard lock(impl_->mutex);
  return impl_->release_everything();
}

void CachingAllocator::set_limit(std::optional<std::uint64_t> bytes) {
  const std::lock_guard lock(impl_->mutex);
  impl_->limit = bytes;
  if (bytes && impl_->counters.reserved_bytes > *bytes) {
    impl_->release_at_least(impl_->counters.reserved_bytes - *bytes);
  }
}

std::optional<std::uint64_t> CachingAllocator::limit() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->limit;
}

PoolId CachingAllocator::create_private_pool() {
  const std::lock_guard lock(impl_->mutex);
  impl_->private_pools.insert(++impl_->last_pool_id);
  return impl_->last_pool_id;
}

void CachingAllocator::release_private_pool(PoolId pool) {
  const std::lock_guard lock(impl_->mutex);
  impl_->private_pools.erase(pool);
  impl_->drop_empty_private_pools();
}

Stats CachingAllocator::stats() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->stats();
}

void CachingAllocator::reset_peak_stats() {
  const std::lock_guard lock(impl_->mutex);
  impl_->counters.peak_allocated_bytes = impl_->counters.allocated_bytes;
  impl_->counters.peak_reserved_bytes = impl_->counters.reserved_bytes;
}

std::vector<SegmentInfo> CachingAllocator::snapshot() const {
  const std::lock_guard lock(impl_->mutex);
  std::vector<SegmentInfo> infos;
  for (const auto& segment : impl_->segments) {
    SegmentInfo& info = infos.emplace_back();
    info = {segment->address, segment->bytes, segment->pool->stream, segment->pool->id, {}};
    for (const Block* block = segment->first; block; block = block->next) {
      info.blocks.push_back({block->address, block->bytes, block->requested_bytes, block->allocated});
    }
  }
  std::sort(infos.begin(), infos.end(),
            [](const auto& a, const auto& b) { return std::less<>()(a.address, b.address); });
  return infos;
}

void CachingAllocator::set_event_hook(std::function<void(const Event&)> hook) {
  const std::lock_guard lock(impl_->mutex);
  impl_->hook = std::move(hook);
}

}  // namespace cuttle::memory
