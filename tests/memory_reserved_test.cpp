#include <doctest/doctest.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <vector>

#include "cuttle/error.hpp"
#include "cuttle/memory.hpp"
#include "memory/caching_allocator.hpp"
#include "support/failing_source.hpp"
#include "support/memory_checks.hpp"
#include "support/reserving_source.hpp"

/// The allocator where addresses are reserved and memory comes extent by extent.

using namespace cuttle;
using namespace cuttle::memory;
using cuttle::test::check_consistent;
using cuttle::test::FailingSource;
using cuttle::test::kGiB;
using cuttle::test::reserving_card;
using cuttle::test::ReservingSource;

namespace {

std::byte* address(const Block* block) { return static_cast<std::byte*>(CachingAllocator::pointer(block)); }

std::uint64_t reserved(const CachingAllocator& allocator) { return allocator.stats().reserved_bytes; }

}  // namespace

TEST_CASE("what was taken piece by piece serves one block") {
  CachingAllocator allocator(reserving_card(kGiB));
  std::vector<Block*> pieces;
  for (int i = 0; i < 5; ++i) pieces.push_back(allocator.allocate(12 * kMiB));
  std::byte* const where = address(pieces[0]);
  CHECK(reserved(allocator) == 60 * kMiB);
  for (Block* piece : pieces) allocator.free(piece);
  CHECK(address(allocator.allocate(60 * kMiB)) == where);
  CHECK(reserved(allocator) == 60 * kMiB);
  check_consistent(allocator);
}

TEST_CASE("only what a free neighbour lacks is added") {
  CachingAllocator allocator(reserving_card(kGiB));
  Block* const first = allocator.allocate(10 * kMiB);
  Block* const second = allocator.allocate(5 * kMiB + 512);
  CHECK(reserved(allocator) == 16 * kMiB);
  allocator.free(second);
  Block* const larger = allocator.allocate(9 * kMiB);
  CHECK(address(larger) == address(first) + 10 * kMiB);
  CHECK(reserved(allocator) == 20 * kMiB);
  allocator.allocate(100);  // small requests have addresses of their own
  CHECK(reserved(allocator) == 22 * kMiB);
  check_consistent(allocator);
}

TEST_CASE("little is added to little, and much to much, so that the source is not called for every block") {
  CachingAllocator allocator(reserving_card(8 * kGiB));
  allocator.allocate(2 * kMiB);
  CHECK(reserved(allocator) == 2 * kMiB);
  allocator.allocate(320 * kMiB);
  allocator.allocate(2 * kMiB);
  CHECK(reserved(allocator) == 322 * kMiB + 12 * kMiB);
  allocator.allocate(3000 * kMiB);
  allocator.allocate(2 * kMiB);
  const std::uint64_t before = reserved(allocator);
  allocator.allocate(20 * kMiB);
  CHECK(reserved(allocator) <= before + 20 * kMiB);
  check_consistent(allocator);
}

TEST_CASE("memory between blocks in use goes back, and comes again at the same place") {
  const auto live = std::make_shared<ReservingSource::Live>();
  {
    CachingAllocator allocator(std::make_unique<ReservingSource>(2 * kGiB, live));
    std::vector<Block*> blocks;
    for (int i = 0; i < 5; ++i) blocks.push_back(allocator.allocate(100 * kMiB));
    std::byte* const where = address(blocks[2]);
    allocator.free(blocks[2]);
    CHECK(allocator.empty_cache() == 100 * kMiB);
    CHECK(reserved(allocator) == 400 * kMiB);
    CHECK(allocator.snapshot().size() == 2);
    check_consistent(allocator);
    blocks[2] = allocator.allocate(60 * kMiB);
    CHECK(address(blocks[2]) == where);
    CHECK(reserved(allocator) == 460 * kMiB);
    check_consistent(allocator);
    allocator.free(blocks[3]);
    CHECK(address(allocator.allocate(140 * kMiB)) == where + 60 * kMiB);  // across the hole and the free block behind
    CHECK(reserved(allocator) == 500 * kMiB);
    check_consistent(allocator);
    std::size_t mapped = 0;
    for (const auto& [begin, bytes] : *live) mapped += bytes;
    CHECK(mapped == 500 * kMiB);
  }
  CHECK(live->empty());
}

TEST_CASE("an extent that is in use in part stays whole") {
  CachingAllocator allocator(reserving_card(kGiB));
  allocator.free(allocator.allocate(40 * kMiB));
  Block* const held = allocator.allocate(2 * kMiB);
  CHECK(allocator.empty_cache() == 0);
  allocator.free(held);
  CHECK(allocator.empty_cache() == 40 * kMiB);
  check_consistent(allocator);
}

TEST_CASE("under a limit the least is added, and the cache goes first, but what the request builds on") {
  CachingAllocator allocator(reserving_card(kGiB));
  allocator.set_limit(100 * kMiB);
  Block* const hole = allocator.allocate(40 * kMiB);
  Block* const wall = allocator.allocate(10 * kMiB);
  Block* const tail = allocator.allocate(20 * kMiB);
  CHECK(reserved(allocator) == 70 * kMiB);
  allocator.free(tail);
  allocator.free(hole);
  std::byte* const where = address(wall) + 10 * kMiB;
  CHECK(address(allocator.allocate(90 * kMiB)) == where);  // 20 were there, 70 are added and 40 have gone
  CHECK(reserved(allocator) == 100 * kMiB);
  CHECK(allocator.stats().retries == 1);
  CHECK_THROWS_AS(allocator.allocate(2 * kMiB), OutOfMemoryError);
  CHECK(reserved(allocator) == 100 * kMiB);
  allocator.set_limit(101 * kMiB + 512);
  CHECK_THROWS_AS(allocator.allocate(2 * kMiB), OutOfMemoryError);  // the card gives 2 MiB at a time
  allocator.set_limit(102 * kMiB);
  CHECK_NOTHROW(allocator.allocate(2 * kMiB));
  check_consistent(allocator);
}

TEST_CASE("a large block breaks rather than that a small request fails") {
  CachingAllocator allocator(reserving_card(32 * kMiB));
  Block* const large = allocator.allocate(32 * kMiB);
  CHECK_THROWS_AS(allocator.allocate(100), OutOfMemoryError);
  allocator.free(large);
  Block* const held = allocator.allocate(16 * kMiB);
  CHECK_NOTHROW(allocator.allocate(100));
  allocator.free(held);
  check_consistent(allocator);
}

TEST_CASE("when the source has no room the cache goes and the request is tried again") {
  const auto live = std::make_shared<ReservingSource::Live>();
  CachingAllocator allocator(std::make_unique<FailingSource>(std::make_unique<ReservingSource>(2 * kGiB, live), 3, 1));
  allocator.free(allocator.allocate(100));           // call 1
  Block* const held = allocator.allocate(4 * kMiB);  // call 2
  CHECK_NOTHROW(allocator.allocate(8 * kMiB));       // call 3 fails
  CHECK(allocator.stats().retries == 1);
  CHECK(reserved(allocator) == 12 * kMiB);
  allocator.free(held);
  check_consistent(allocator);
}

TEST_CASE("a request beyond the addresses that can be reserved is the source's to grant whole") {
  auto source = std::make_unique<ReservingSource>(64 * kMiB);
  const ReservingSource& counted = *source;
  CachingAllocator allocator(std::move(source));
  for (int i = 0; i < 3; ++i) CHECK_NOTHROW(allocator.allocate(100 * kMiB));
  CHECK(counted.reservations == 0);
  for (int i = 0; i < 3; ++i) CHECK_NOTHROW(allocator.allocate(40 * kMiB));  // 24 MiB of each range are left
  CHECK(counted.reservations == 3);
  check_consistent(allocator);
}

TEST_CASE("a private pool grows out of the common one's last free block") {
  CachingAllocator allocator(reserving_card(kGiB));
  Block* const block = allocator.allocate(30 * kMiB);
  std::byte* const where = address(block);
  allocator.free(block);
  const PoolId pool = allocator.create_private_pool();
  Block* const larger = allocator.allocate(50 * kMiB, 0, pool);
  CHECK(address(larger) == where);
  CHECK(reserved(allocator) == 50 * kMiB);
  allocator.free(larger);
  CHECK(allocator.empty_cache() == 0);
  Block* const common = allocator.allocate(30 * kMiB);
  CHECK(address(common) == where + 50 * kMiB);
  allocator.free(common);
  CHECK(allocator.empty_cache() == 30 * kMiB);
  check_consistent(allocator);
  allocator.release_private_pool(pool);
  CHECK(allocator.empty_cache() == 50 * kMiB);
  check_consistent(allocator);
}

TEST_CASE("host memory is put behind reserved addresses and taken away, and what comes again is empty") {
  HostSource source;
  const MemorySource::Addresses addresses = source.reserve();
  REQUIRE(addresses.begin);
  CHECK(reinterpret_cast<std::uintptr_t>(addresses.begin) % (2 * kMiB) == 0);
  CHECK(addresses.bytes >= source.usage().value().total_bytes);
  CHECK(source.granularity() == static_cast<std::size_t>(sysconf(_SC_PAGESIZE)));
  auto* const first = static_cast<unsigned char*>(addresses.begin) + 6 * kMiB;
  unsigned char* const second = first + 4 * kMiB;
  REQUIRE(source.map(first, 4 * kMiB, 4 * kMiB));
  REQUIRE(source.map(second, source.granularity(), kMiB));
  std::memset(first, 0xab, 4 * kMiB + source.granularity());
  source.unmap(first, 4 * kMiB);
  CHECK(second[0] == 0xab);
  REQUIRE(source.map(first, 4 * kMiB, 4 * kMiB));
  CHECK(first[0] == 0);
  CHECK(first[4 * kMiB - 1] == 0);
  CHECK_FALSE(
      source.map(second + source.granularity(), addresses.bytes / 2, kMostExtent));  // as much as the machine has
  source.unmap(first, 4 * kMiB);
  source.unmap(second, source.granularity());
  source.unreserve(addresses);
}
