#include <algorithm>
#include <array>
#include <limits>

#include "memory/allocator_impl.hpp"

/// How an allocator's memory comes from the source and goes back.
namespace cuttle::memory {

namespace {

constexpr std::uint64_t kEverything = std::numeric_limits<std::uint64_t>::max();

/// A private pool may have what the common one has free.
bool is_free_for(const Pool& pool, const Block* block) {
  return block && block->state == Block::State::free && (block->pool == &pool || block->pool->id == 0);
}

/// How a block of `bytes` bytes could lie across an unmapped one; the place's bytes are 0 where it cannot.
Place place_at(const Pool& pool, Block* unmapped, std::size_t bytes, std::size_t granularity) {
  Place place{.unmapped = unmapped};
  std::size_t room = unmapped->bytes;
  if (is_free_for(pool, unmapped->previous)) {
    place.before = unmapped->previous;
    room += place.before->bytes;
  }
  if (room >= bytes) {
    place.bytes = round_up(bytes - (room - unmapped->bytes), granularity);
  } else if (is_free_for(pool, unmapped->next) && room + unmapped->next->bytes >= bytes) {
    place.after = unmapped->next;
    place.bytes = unmapped->bytes;
  }
  return place;
}

}  // namespace

CachingAllocator::Impl::~Impl() {
  for (const auto& segment : segments) {
    if (!segment->is_reserved) {
      source->deallocate(segment->address, segment->bytes);
      continue;
    }
    for (const Extent& extent : segment->extents) source->unmap(extent.address, extent.bytes);
    source->unreserve({segment->address, segment->bytes});
  }
}

// Coming

/// A free block of at least `bytes` bytes that holds new memory, or nullptr where the source and the limit leave no
/// room even after giving back what is cached.
Block* CachingAllocator::Impl::grow(Pool& pool, bool is_small, std::size_t bytes) {
  while (true) {
    slab.reserve(kMostNewBlocks);
    const Place place = cheapest_place(pool, is_small, bytes);
    if (Block* block = place.unmapped ? extend(pool, place) : add_whole_segment(pool, is_small, bytes)) return block;
    if (!release_for(place)) return nullptr;
    ++counters.retries;
  }
}

Place CachingAllocator::Impl::cheapest_place(const Pool& pool, bool is_small, std::size_t bytes) {
  Place best = cheapest_reserved_place(pool, is_small, bytes);
  if (!best.unmapped && reserve_segment(pool, is_small, bytes)) best = cheapest_reserved_place(pool, is_small, bytes);
  if (!best.unmapped) best.bytes = bytes;
  return best;
}

Place CachingAllocator::Impl::cheapest_reserved_place(const Pool& pool, bool is_small, std::size_t bytes) const {
  const std::size_t granularity = source->granularity();
  Place best;
  for (const auto& segment : segments) {
    if (!segment->is_reserved || segment->stream != pool.stream || segment->is_small != is_small) continue;
    for (Block* block = segment->first; block; block = block->next) {
      if (block->state != Block::State::unmapped) continue;
      const Place place = place_at(pool, block, bytes, granularity);
      if (place.bytes > 0 && (!best.unmapped || place.bytes < best.bytes)) best = place;
    }
  }
  return best;
}

/// Addresses to map at least `bytes` bytes into; false where the source has none.
bool CachingAllocator::Impl::reserve_segment(const Pool& pool, bool is_small, std::size_t bytes) {
  if (!reserves_addresses) return false;
  std::unique_ptr<Segment> segment = blank_segment(pool.stream, is_small);
  const MemorySource::Addresses addresses = source->reserve();
  reserves_addresses = addresses.begin != nullptr;
  if (!reserves_addresses) return false;
  if (addresses.bytes < bytes) {
    source->unreserve(addresses);
    return false;
  }
  segment->is_reserved = true;
  add_segment(std::move(segment), addresses.begin, addresses.bytes).state = Block::State::unmapped;
  return true;
}

/// Puts memory at a place: the usual amount, or the least where there is no room for that.
Block* CachingAllocator::Impl::extend(Pool& pool, const Place& place) {
  Block* block = place.unmapped;
  Segment& segment = *block->segment;
  const std::size_t wanted = extent_bytes(place.bytes, segment.is_small, counters.reserved_bytes);
  const std::size_t usual = std::min(round_up(wanted, source->granularity()), block->bytes);
  std::size_t bytes = usual;
  if (!map(segment, block->address, bytes, pool)) {
    bytes = place.bytes;
    if (bytes == usual || !map(segment, block->address, bytes, pool)) return nullptr;
  }
  if (block->bytes > bytes) split(slab, block, bytes);
  block->state = Block::State::free;
  block->pool = &pool;
  for (Block* neighbour : {place.before, place.after}) {
    if (!neighbour || neighbour->pool == &pool) continue;
    lists_of(*neighbour).remove(neighbour);
    neighbour->pool = &pool;
    lists_of(*neighbour).insert(neighbour);
  }
  return settle(slab, block);
}

bool CachingAllocator::Impl::map(Segment& segment, std::byte* address, std::size_t bytes, const Pool& pool) {
  if (limit && counters.reserved_bytes + bytes > *limit) return false;
  std::vector<Extent>& extents = segment.extents;
  const std::size_t pieces = (bytes + kMostExtent - 1) / kMostExtent;
  extents.reserve(extents.size() + pieces);  // nothing may fail once the source has given memory
  if (!source->map(address, bytes, kMostExtent)) return false;
  auto at = std::find_if(extents.begin(), extents.end(), [&](const Extent& each) { return each.address > address; });
  for (std::size_t done = 0; done < bytes; done += kMostExtent, ++at) {
    at = extents.insert(at, {address + done, std::min(bytes - done, kMostExtent)});
    count_extent(*at, pool);
  }
  return true;
}

/// A segment of the usual size, or of exactly `bytes` where the usual one does not fit.
Block* CachingAllocator::Impl::add_whole_segment(Pool& pool, bool is_small, std::size_t bytes) {
  const std::size_t usual = segment_bytes(bytes, counters.reserved_bytes);
  Block* block = add_whole_segment_of(pool, is_small, usual);
  return block || usual == bytes ? block : add_whole_segment_of(pool, is_small, bytes);
}

Block* CachingAllocator::Impl::add_whole_segment_of(Pool& pool, bool is_small, std::size_t bytes) {
  if (limit && counters.reserved_bytes + bytes > *limit) return nullptr;
  std::unique_ptr<Segment> segment = blank_segment(pool.stream, is_small);
  void* address = source->allocate(bytes);
  if (!address) return nullptr;
  segment->extents.push_back({static_cast<std::byte*>(address), bytes});
  count_extent(segment->extents.back(), pool);
  Block& block = add_segment(std::move(segment), address, bytes);
  block.pool = &pool;
  lists_of(block).insert(&block);
  return &block;
}

/// For what the source is going to give: nothing may fail after that.
std::unique_ptr<Segment> CachingAllocator::Impl::blank_segment(Stream stream, bool is_small) {
  segments.reserve(segments.size() + 1);
  auto segment = std::make_unique<Segment>();
  segment->extents.reserve(1);
  segment->stream = stream;
  segment->is_small = is_small;
  return segment;
}

/// Returns its one block, which is in no list.
Block& CachingAllocator::Impl::add_segment(std::unique_ptr<Segment> segment, void* address,
                                           std::size_t bytes) noexcept {
  Block* block = slab.take();
  block->address = segment->address = static_cast<std::byte*>(address);
  block->bytes = segment->bytes = bytes;
  block->segment = segment.get();
  segment->first = block;
  segment->position = segments.size();
  segments.push_back(std::move(segment));
  return *block;
}

void CachingAllocator::Impl::count_extent(const Extent& extent, const Pool& pool) {
  ++counters.source_allocations;
  counters.reserved_bytes += extent.bytes;
  counters.peak_reserved_bytes = std::max(counters.peak_reserved_bytes, counters.reserved_bytes);
  report(Event::Kind::segment_allocate, extent.address, extent.bytes, pool.stream, pool.id);
}

// Going

/// Calls use(spare) for every extent that lies within a free block of the common pool: a captured graph replays into
/// its pool's addresses without asking, so free blocks there are not unused.
template <class Use> void CachingAllocator::Impl::for_each_spare(const Place& keep, Use&& use) const {
  for (const auto& segment : segments) {
    auto extent = segment->extents.begin();
    for (Block* block = segment->first; block && extent != segment->extents.end(); block = block->next) {
      if (block->state != Block::State::free || block->pool->id != 0 || keep.uses(block)) continue;
      while (extent != segment->extents.end() && extent->address < block->address) ++extent;
      for (; extent != segment->extents.end() && extent->end() <= block->end(); ++extent) use(Spare{block, *extent});
    }
  }
}

/// The smallest one of at least `bytes` bytes, else the largest; no block where there is none.
Spare CachingAllocator::Impl::cheapest_spare(std::uint64_t bytes, const Place& keep) const {
  Spare best;
  for_each_spare(keep, [&](const Spare& spare) {
    const std::uint64_t size = spare.extent.bytes, best_size = best.extent.bytes;
    const bool enough = size >= bytes;
    if (!best.block || (best_size >= bytes ? enough && size < best_size : size > best_size)) best = spare;
  });
  return best;
}

std::uint64_t CachingAllocator::Impl::spare_bytes(const Place& keep) const {
  std::uint64_t bytes = 0;
  for_each_spare(keep, [&](const Spare& spare) { bytes += spare.extent.bytes; });
  return bytes;
}

/// Gives back cached memory so that another try at `place` can succeed; false when that cannot help. Under a limit it
/// gives back no more than it must; when it is the source that refuses, what would help is unknown and all goes. What
/// the place counts on stays: it would have to come back.
bool CachingAllocator::Impl::release_for(const Place& place) {
  if (!limit || counters.reserved_bytes + place.bytes <= *limit) return release_at_least(kEverything, place) > 0;
  const std::uint64_t needed = counters.reserved_bytes + place.bytes - *limit;
  return spare_bytes(place) >= needed && release_at_least(needed, place) >= needed;
}

std::uint64_t CachingAllocator::Impl::release_at_least(std::uint64_t bytes, const Place& keep) {
  std::uint64_t released = 0;
  while (released < bytes) {
    const Spare spare = cheapest_spare(bytes - released, keep);
    if (!spare.block) break;
    released += spare.extent.bytes;
    release(spare);
  }
  return released;
}

void CachingAllocator::Impl::release(const Spare& spare) {
  slab.reserve(2);
  auto [block, extent] = spare;
  Segment& segment = *block->segment;
  lists_of(*block).remove(block);
  ++counters.source_frees;
  counters.reserved_bytes -= extent.bytes;
  report(Event::Kind::segment_free, extent.address, extent.bytes, segment.stream, block->pool->id);
  if (segment.is_reserved) {
    if (block->address < extent.address) {
      Block* rest = split(slab, block, static_cast<std::size_t>(extent.address - block->address));
      lists_of(*block).insert(block);
      block = rest;
    }
    if (block->bytes > extent.bytes) {
      Block* rest = split(slab, block, extent.bytes);
      lists_of(*rest).insert(rest);
    }
    block->state = Block::State::unmapped;
    block->pool = nullptr;
    settle(slab, block);
    unmap(segment, extent);
    return;
  }
  slab.give_back(block);
  source->deallocate(segment.address, segment.bytes);
  const std::size_t position = segment.position;
  segments[position].swap(segments.back());
  segments[position]->position = position;
  segments.pop_back();
}

void CachingAllocator::Impl::unmap(Segment& segment, const Extent& extent) noexcept {
  source->unmap(extent.address, extent.bytes);
  std::erase_if(segment.extents, [&](const Extent& each) { return each.address == extent.address; });
}

}  // namespace cuttle::memory
