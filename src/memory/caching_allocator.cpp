#include "memory/caching_allocator.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <functional>
#include <limits>

#include "cuttle/error.hpp"
#include "memory/allocator_impl.hpp"

namespace cuttle::memory {

Block* CachingAllocator::Impl::allocate(std::size_t bytes, Stream stream, PoolId pool_id) {
  if (bytes == 0) throw UsageError("a block of 0 bytes was requested", "an empty tensor needs no block");
  Pool& pool = pool_of(stream, pool_id);
  if (bytes > kMaxBlockBytes) throw out_of_memory(bytes, stream, pool_id);
  slab.reserve(kMostNewBlocks);  // nothing below fails half-way
  const std::size_t rounded = round_up(bytes, kRounding);
  const bool small = is_small(rounded);
  Block* block = best_fit(pool, small, rounded);
  if (!block) block = grow(pool, small, rounded);
  // A small request would rather break a large block than fail.
  if (!block && small) block = best_fit(pool, false, rounded);
  if (!block) throw out_of_memory(bytes, stream, pool_id);
  occupy(block, pool, rounded, bytes);
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

/// A private pool takes what the common one has free before it adds memory: the steps before the recorded one have left
/// there what it needs.
Block* CachingAllocator::Impl::best_fit(Pool& pool, bool is_small, std::size_t bytes) {
  Block* block = pool.lists(is_small).best_fit(bytes);
  return block || pool.id == 0 ? block : pool_of(pool.stream, 0).lists(is_small).best_fit(bytes);
}

void CachingAllocator::Impl::occupy(Block* block, Pool& pool, std::size_t bytes, std::size_t requested_bytes) noexcept {
  FreeLists& lists = lists_of(*block);
  lists.remove(block);
  // Even a remainder that no request would fit in is split off: it merges with the next block once that is free.
  if (block->bytes > bytes) lists.insert(split(slab, block, bytes));
  block->pool = &pool;
  block->state = Block::State::allocated;
  block->requested_bytes = requested_bytes;

  ++counters.allocations;
  ++counters.active_blocks;
  counters.requested_bytes += requested_bytes;
  counters.allocated_bytes += block->bytes;
  counters.peak_allocated_bytes = std::max(counters.peak_allocated_bytes, counters.allocated_bytes);
  report(Event::Kind::allocate, block->address, block->bytes, pool.stream, pool.id);
}

void CachingAllocator::Impl::free(Block* block) noexcept {
  assert(block->state == Block::State::allocated);
  ++counters.frees;
  --counters.active_blocks;
  counters.requested_bytes -= block->requested_bytes;
  counters.allocated_bytes -= block->bytes;
  report(Event::Kind::free, block->address, block->bytes, block->pool->stream, block->pool->id);
  block->state = Block::State::free;
  block->requested_bytes = 0;
  settle(slab, block);
}

void CachingAllocator::Impl::release_private_pool(PoolId id) {
  if (private_pools.erase(id) == 0) return;
  for (const auto& segment : segments) {
    Pool& common = pool_of(segment->stream, 0);
    for (Block* block = segment->first; block; block = block->next) {
      if (!block->pool || block->pool->id != id) continue;
      const bool is_free = block->state == Block::State::free;
      if (is_free) lists_of(*block).remove(block);
      block->pool = &common;
      if (is_free) block = settle(slab, block);
    }
  }
  std::erase_if(pools, [&](const auto& pool) { return pool->id == id; });
}

// Figures

Stats CachingAllocator::Impl::stats() const {
  Stats s = counters;
  s.segments = s.source_allocations - s.source_frees;
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

std::vector<SegmentInfo> CachingAllocator::Impl::snapshot() const {
  std::vector<SegmentInfo> infos;
  for (const auto& segment : segments) {
    bool goes_on = false;
    for (const Block* block = segment->first; block; block = block->next) {
      if (block->state == Block::State::unmapped) {
        goes_on = false;
        continue;
      }
      if (!goes_on) infos.push_back({block->address, 0, segment->stream, {}});
      goes_on = true;
      infos.back().bytes += block->bytes;
      infos.back().blocks.push_back({block->address, block->bytes, block->requested_bytes,
                                     block->state == Block::State::allocated, block->pool->id});
    }
  }
  std::sort(infos.begin(), infos.end(),
            [](const auto& a, const auto& b) { return std::less<>()(a.address, b.address); });
  return infos;
}

OutOfMemoryError CachingAllocator::Impl::out_of_memory(std::size_t bytes, Stream stream, PoolId pool_id) {
  ++counters.out_of_memory;
  report(Event::Kind::out_of_memory, nullptr, bytes, stream, pool_id);
  std::uint64_t free_elsewhere = 0;
  for (const auto& segment : segments) {
    for (const Block* block = segment->first; block; block = block->next) {
      if (block->state != Block::State::free) continue;
      const Pool& pool = *block->pool;
      const bool within_reach = pool.stream == stream && (pool.id == pool_id || pool.id == 0);
      free_elsewhere += within_reach ? 0 : block->bytes;
    }
  }
  return out_of_memory_error({device, bytes, stats(), limit, source->usage(), free_elsewhere});
}

// The public face: each call takes the lock and does the work above

CachingAllocator::CachingAllocator(std::unique_ptr<MemorySource> source, Device device) : impl_(new Impl) {
  impl_->source = std::move(source);
  impl_->device = device;
}

CachingAllocator::~CachingAllocator() = default;

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
  return impl_->release_at_least(std::numeric_limits<std::uint64_t>::max(), {});
}

void CachingAllocator::set_limit(std::optional<std::uint64_t> bytes) {
  const std::lock_guard lock(impl_->mutex);
  impl_->limit = bytes;
  if (bytes && impl_->counters.reserved_bytes > *bytes) {
    impl_->release_at_least(impl_->counters.reserved_bytes - *bytes, {});
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
  impl_->release_private_pool(pool);
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
  return impl_->snapshot();
}

void CachingAllocator::set_event_hook(std::function<void(const Event&)> hook) {
  const std::lock_guard lock(impl_->mutex);
  impl_->hook = std::move(hook);
}

}  // namespace cuttle::memory
