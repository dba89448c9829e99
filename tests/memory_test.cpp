#include "cuttle/memory.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <vector>

#include "cuttle/error.hpp"
#include "memory/caching_allocator.hpp"
#include "memory/peak_watch.hpp"
#include "support/address_source.hpp"
#include "support/memory_checks.hpp"

using namespace cuttle;
using namespace cuttle::memory;
using cuttle::test::AddressSource;
using cuttle::test::card;
using cuttle::test::check_consistent;
using cuttle::test::kGiB;

namespace {

std::byte* address(const Block* block) { return static_cast<std::byte*>(CachingAllocator::pointer(block)); }

}  // namespace

TEST_CASE("a block is rounded to 512 bytes, aligned to 256 and at least as large as asked") {
  CachingAllocator allocator(card(kGiB));
  for (const std::size_t bytes : {1u, 511u, 512u, 513u, 1048576u, 1048577u, 30000001u}) {
    CAPTURE(bytes);
    Block* block = allocator.allocate(bytes);
    CHECK(CachingAllocator::size(block) == (bytes + 511) / 512 * 512);
    CHECK(reinterpret_cast<std::uintptr_t>(address(block)) % 256 == 0);
    CHECK(allocator.stats().requested_bytes == bytes);
    allocator.free(block);
  }
  check_consistent(allocator);
}

TEST_CASE("small requests share 2 MiB, large ones 20 MiB, and huge ones get a segment of their own") {
  CachingAllocator allocator(card(kGiB));
  const auto reserved_by = [&](std::size_t bytes) {
    const std::uint64_t before = allocator.stats().reserved_bytes;
    allocator.allocate(bytes);
    return allocator.stats().reserved_bytes - before;
  };
  CHECK(reserved_by(1) == 2 * kMiB);
  CHECK(reserved_by(1 * kMiB) == 0);
  CHECK(reserved_by(1 * kMiB) == 2 * kMiB);
  CHECK(reserved_by(1 * kMiB + 1) == 20 * kMiB);
  CHECK(reserved_by(10 * kMiB - 512) == 0);
  CHECK(reserved_by(10 * kMiB) == 10 * kMiB);
  CHECK(reserved_by(33 * kMiB + 1) == 34 * kMiB);
}

TEST_CASE("large segments grow with what is reserved, so that holes can merge") {
  CachingAllocator allocator(card(8 * kGiB));
  allocator.allocate(3200 * kMiB);
  allocator.allocate(2 * kMiB);
  CHECK(allocator.stats().reserved_bytes == 3200 * kMiB + 200 * kMiB);
  allocator.allocate(100);
  CHECK(allocator.stats().reserved_bytes == 3400 * kMiB + 2 * kMiB);
}

TEST_CASE("a freed block is used again, without the source") {
  CachingAllocator allocator(card(kGiB));
  Block* first = allocator.allocate(5000);
  std::byte* const where = address(first);
  allocator.free(first);
  Block* second = allocator.allocate(4700);
  CHECK(address(second) == where);
  CHECK(allocator.stats().source_allocations == 1);
  allocator.free(second);
}

TEST_CASE("the smallest free block that fits is taken") {
  CachingAllocator allocator(card(kGiB));
  std::vector<Block*> blocks;
  // Holes of 8, 3 and 5 KiB, each between blocks in use.
  for (const std::size_t kib : {8, 1, 3, 1, 5, 1}) blocks.push_back(allocator.allocate(kib * kKiB));
  std::byte *const of_3 = address(blocks[2]), *const of_5 = address(blocks[4]), *const of_8 = address(blocks[0]);
  for (const int hole : {0, 2, 4}) allocator.free(blocks[hole]);

  CHECK(address(allocator.allocate(5 * kKiB)) == of_5);
  CHECK(address(allocator.allocate(2 * kKiB)) == of_3);
  CHECK(address(allocator.allocate(4 * kKiB)) == of_8);
  check_consistent(allocator);
}

TEST_CASE("best fit holds within one size class") {
  CachingAllocator allocator(card(kGiB));
  // 100 KiB and more: one class spans 2 KiB, these three sizes share one.
  const std::vector<std::size_t> sizes{101 * kKiB, 100 * kKiB, 100 * kKiB + 512};
  std::vector<Block*> holes, walls;
  for (const std::size_t bytes : sizes) {
    holes.push_back(allocator.allocate(bytes));
    walls.push_back(allocator.allocate(512));
  }
  std::byte* const middle = address(holes[2]);
  for (Block* hole : holes) allocator.free(hole);
  CHECK(address(allocator.allocate(100 * kKiB + 1)) == middle);
}

TEST_CASE("neighbours coalesce at once, in whatever order they are freed") {
  for (const std::vector<int>& order : {std::vector{0, 1, 2}, {2, 1, 0}, {0, 2, 1}, {1, 0, 2}}) {
    CachingAllocator allocator(card(kGiB));
    std::vector<Block*> blocks;
    for (int i = 0; i < 3; ++i) blocks.push_back(allocator.allocate(600 * kKiB));
    for (const int i : order) {
      allocator.free(blocks[i]);
      check_consistent(allocator);
    }
    CHECK(allocator.stats().free_blocks == allocator.stats().segments);
  }
}

TEST_CASE("small blocks do not pin large segments") {
  CachingAllocator allocator(card(kGiB));
  Block* large = allocator.allocate(3 * kMiB);
  allocator.allocate(100);
  allocator.free(large);
  CHECK(allocator.empty_cache() == 20 * kMiB);
  CHECK(allocator.stats().reserved_bytes == 2 * kMiB);
}

TEST_CASE("streams never share a block or a segment") {
  CachingAllocator allocator(card(kGiB));
  Block* block = allocator.allocate(1000, 1);
  std::byte* const where = address(block);
  allocator.free(block);
  Block* other = allocator.allocate(1000, 2);
  CHECK(address(other) != where);
  CHECK(address(allocator.allocate(1000, 1)) == where);
  for (const SegmentInfo& segment : allocator.snapshot()) CHECK(segment.stream == (segment.address == where ? 1 : 2));
}

TEST_CASE("a private pool keeps its memory until it is released") {
  CachingAllocator allocator(card(kGiB));
  const PoolId graph = allocator.create_private_pool();
  Block* inside = allocator.allocate(3 * kMiB, 0, graph);
  std::byte* const where = address(inside);
  allocator.free(inside);

  CHECK(address(allocator.allocate(3 * kMiB)) != where);                     // not for the common pool
  CHECK(address(inside = allocator.allocate(3 * kMiB, 0, graph)) == where);  // but for itself
  allocator.free(inside);
  CHECK(allocator.empty_cache() == 0);  // a graph may replay into it
  allocator.release_private_pool(graph);
  CHECK(allocator.empty_cache() == 20 * kMiB);
  CHECK_THROWS_AS(allocator.allocate(1, 0, graph), UsageError);
  CHECK_THROWS_AS(allocator.allocate(1, 0, 77), UsageError);
  CHECK(allocator.create_private_pool() != graph);
}

TEST_CASE("a block in use when its private pool is released comes back afterwards") {
  CachingAllocator allocator(card(kGiB));
  const PoolId graph = allocator.create_private_pool();
  Block* block = allocator.allocate(100, 0, graph);
  allocator.release_private_pool(graph);
  CHECK(allocator.empty_cache() == 0);
  allocator.free(block);
  CHECK(allocator.empty_cache() == 2 * kMiB);
  check_consistent(allocator);
}

TEST_CASE("private pools take over what the common one has free, a piece at a time, and give it back") {
  CachingAllocator allocator(card(kGiB));
  Block* const before = allocator.allocate(8 * kMiB);
  std::byte* const where = address(before);
  allocator.free(before);
  const PoolId one = allocator.create_private_pool(), two = allocator.create_private_pool();
  REQUIRE(one != two);
  Block* const first = allocator.allocate(3 * kMiB, 0, one);
  Block* const second = allocator.allocate(4 * kMiB, 0, two);
  CHECK(address(first) == where);
  CHECK(address(second) == where + 3 * kMiB);
  allocator.free(first);
  allocator.free(second);
  check_consistent(allocator);
  // Each for itself, and for the common one what nobody took.
  CHECK(address(allocator.allocate(4 * kMiB)) == where + 7 * kMiB);
  CHECK(address(allocator.allocate(2 * kMiB, 0, one)) == where);
  CHECK(address(allocator.allocate(4 * kMiB, 0, two)) == where + 3 * kMiB);
  CHECK(allocator.stats().source_allocations == 1);
  CHECK(address(allocator.allocate(10 * kMiB, 0, one)) != where);
  CHECK(allocator.stats().source_allocations == 2);
  allocator.release_private_pool(one);
  CHECK(address(allocator.allocate(kMiB + 1)) == where + 11 * kMiB);
  check_consistent(allocator);
}

TEST_CASE("statistics count blocks, bytes, calls and peaks") {
  CachingAllocator allocator(card(kGiB));
  Block* a = allocator.allocate(1000);
  Block* b = allocator.allocate(4 * kMiB);
  Stats stats = allocator.stats();
  CHECK(stats.allocated_bytes == 1024 + 4 * kMiB);
  CHECK(stats.requested_bytes == 1000 + 4 * kMiB);
  CHECK(stats.reserved_bytes == 22 * kMiB);
  CHECK(stats.active_blocks == 2);
  CHECK(stats.free_blocks == 2);
  CHECK(stats.largest_free_block_bytes == 16 * kMiB);
  CHECK(stats.fragmentation == doctest::Approx(1 - 16.0 / (18 - 1.0 / 1024)));

  allocator.free(b);
  allocator.empty_cache();
  stats = allocator.stats();
  CHECK(stats.allocated_bytes == 1024);
  CHECK(stats.reserved_bytes == 2 * kMiB);
  CHECK(stats.peak_allocated_bytes == 1024 + 4 * kMiB);
  CHECK(stats.peak_reserved_bytes == 22 * kMiB);
  CHECK(stats.allocations == 2);
  CHECK(stats.frees == 1);
  CHECK(stats.source_allocations == 2);
  CHECK(stats.source_frees == 1);

  allocator.reset_peak_stats();
  CHECK(allocator.stats().peak_allocated_bytes == 1024);
  CHECK(allocator.stats().peak_reserved_bytes == 2 * kMiB);
  allocator.free(a);
  CHECK(allocator.stats().fragmentation == 0);
}

TEST_CASE("the snapshot lists every block of every segment by address") {
  CachingAllocator allocator(card(kGiB));
  Block* a = allocator.allocate(700);
  Block* b = allocator.allocate(900);
  Block* c = allocator.allocate(30 * kMiB, 5);
  allocator.free(a);
  const auto segments = allocator.snapshot();
  REQUIRE(segments.size() == 2);
  REQUIRE(segments[0].blocks.size() == 3);
  CHECK_FALSE(segments[0].blocks[0].allocated);
  CHECK(segments[0].blocks[1].address == address(b));
  CHECK(segments[0].blocks[1].requested_bytes == 900);
  CHECK(segments[0].blocks[2].bytes == 2 * kMiB - 2048);
  CHECK(segments[1].stream == 5);
  REQUIRE(segments[1].blocks.size() == 1);
  CHECK(segments[1].blocks[0].address == address(c));
}

TEST_CASE("the event hook sees every step of a block's life, in order") {
  CachingAllocator allocator(card(64 * kMiB));
  std::vector<Event> events;
  allocator.set_event_hook([&](const Event& event) { events.push_back(event); });
  Block* block = allocator.allocate(1000, 3);
  const void* where = address(block);
  allocator.free(block);
  allocator.empty_cache();
  CHECK_THROWS_AS(allocator.allocate(65 * kMiB, 3), OutOfMemoryError);

  using Kind = Event::Kind;
  const std::vector<Kind> kinds{Kind::segment_allocate, Kind::allocate, Kind::free, Kind::segment_free,
                                Kind::out_of_memory};
  const std::vector<std::size_t> bytes{2 * kMiB, 1024, 1024, 2 * kMiB, 65 * kMiB};
  REQUIRE(events.size() == kinds.size());
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    CAPTURE(i);
    CHECK(events[i].kind == kinds[i]);
    CHECK(events[i].bytes == bytes[i]);
    CHECK(events[i].stream == 3);
    CHECK(events[i].address == (i < 4 ? where : nullptr));
  }
  allocator.set_event_hook(nullptr);
  allocator.allocate(1);
  CHECK(events.size() == kinds.size());
}

TEST_CASE("a destroyed allocator leaves nothing behind, blocks in use included") {
  const auto live = std::make_shared<AddressSource::Live>();
  {
    CachingAllocator allocator(std::make_unique<AddressSource>(live));
    allocator.allocate(100);
    allocator.free(allocator.allocate(5 * kMiB));
    allocator.allocate(100, 1, allocator.create_private_pool());
    CHECK(live->size() == 3);
  }
  CHECK(live->empty());
}

TEST_CASE("a request of no bytes is an error, and freeing nothing is none") {
  CachingAllocator allocator(card(kGiB));
  CHECK_THROWS_AS(allocator.allocate(0), UsageError);
  allocator.free(nullptr);
  CHECK(allocator.stats().frees == 0);
}

TEST_CASE("a watch tells which blocks were in use at the peak, those from before it too") {
  CachingAllocator allocator(card(kGiB));
  Block* const early = allocator.allocate(3000);
  const auto listed = [](const PeakWatch& watch) {
    std::vector<std::pair<std::size_t, std::size_t>> all;
    for (const auto& [bytes, count] : watch.at_peak()) all.emplace_back(bytes, count);
    return all;
  };
  using Expected = std::vector<std::pair<std::size_t, std::size_t>>;
  {
    const PeakWatch watch(allocator);
    CHECK(listed(watch) == Expected{{3072, 1}});
    Block *const a = allocator.allocate(5000), *const b = allocator.allocate(5000), *const c = allocator.allocate(100);
    CHECK(listed(watch) == Expected{{5120, 2}, {3072, 1}, {512, 1}});
    allocator.free(a);
    allocator.free(early);
    Block* const later = allocator.allocate(6000);
    CHECK(listed(watch) == Expected{{5120, 2}, {3072, 1}, {512, 1}});
    Block* const last = allocator.allocate(20000);
    CHECK(listed(watch) == Expected{{20480, 1}, {6144, 1}, {5120, 1}, {512, 1}});
    for (Block* block : {b, c, later, last}) allocator.free(block);
    CHECK(listed(watch) == Expected{{20480, 1}, {6144, 1}, {5120, 1}, {512, 1}});
  }
  allocator.free(allocator.allocate(1));  // nobody watches
}
