#include <doctest/doctest.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "cuttle/error.hpp"
#include "cuttle/memory.hpp"
#include "memory/caching_allocator.hpp"
#include "memory/out_of_memory.hpp"
#include "support/address_source.hpp"
#include "support/failing_source.hpp"
#include "support/memory_checks.hpp"

using namespace cuttle;
using namespace cuttle::memory;
using cuttle::test::AddressSource;
using cuttle::test::card;
using cuttle::test::check_consistent;
using cuttle::test::FailingSource;
using cuttle::test::kGiB;

namespace {

/// The error that a request ends in.
OutOfMemoryError failure(CachingAllocator& allocator, std::size_t bytes) {
  try {
    allocator.free(allocator.allocate(bytes));
  } catch (const OutOfMemoryError& error) {
    return error;
  }
  FAIL("the request was served");
  return OutOfMemoryError("");
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("the cache is given back and the request tried again before it fails (case 17)") {
  // 5.08 GiB of an 8 GiB card lie cached, in blocks that are each too small, and 1.86 GiB are asked for.
  CachingAllocator allocator(card(8 * kGiB));
  std::vector<Block*> cached;
  for (int i = 0; i < 5; ++i) cached.push_back(allocator.allocate(1040 * kMiB));
  allocator.allocate(2 * kGiB);
  for (Block* block : cached) allocator.free(block);
  const Stats before = allocator.stats();
  REQUIRE(before.reserved_bytes - before.allocated_bytes == 5200 * kMiB);
  REQUIRE(before.largest_free_block_bytes == 1040 * kMiB);

  Block* block = allocator.allocate(1904 * kMiB);
  CHECK(CachingAllocator::size(block) == 1904 * kMiB);
  CHECK(allocator.stats().retries == 1);
  CHECK(allocator.stats().out_of_memory == 0);
  CHECK(allocator.stats().reserved_bytes == 2 * kGiB + 1904 * kMiB);
  check_consistent(allocator);
}

TEST_CASE("when giving back cannot help, the error states every figure (case 17)") {
  // As above, but each cached segment has a block in use in it.
  CachingAllocator allocator(card(8 * kGiB));
  std::vector<Block*> cached;
  for (int i = 0; i < 5; ++i) {
    allocator.free(allocator.allocate(1056 * kMiB));
    allocator.allocate(16 * kMiB);
    cached.push_back(allocator.allocate(1040 * kMiB));
  }
  allocator.allocate(2 * kGiB);
  for (Block* block : cached) allocator.free(block);

  const OutOfMemoryError error = failure(allocator, 1904 * kMiB);
  CAPTURE(error.what());
  CHECK(contains(error.cause(), "cpu"));
  CHECK(contains(error.cause(), "1.86 GiB requested, 2.08 GiB allocated, 7.16 GiB reserved"));
  CHECK(contains(error.cause(), "largest free block 1.02 GiB (fragmentation 0.80)"));
  CHECK(contains(error.cause(), "864.00 MiB of the device's 8.00 GiB are free and other processes hold 0 B"));
  CHECK(contains(error.hint(), "5.08 GiB lie free but in pieces"));
  CHECK(contains(error.hint(), "--batch"));
  CHECK(allocator.stats().out_of_memory == 1);
  CHECK(allocator.stats().retries == 0);  // there was nothing to give back
  check_consistent(allocator);
  CHECK(CachingAllocator::size(allocator.allocate(1040 * kMiB)) == 1040 * kMiB);  // and it goes on working
}

TEST_CASE("a source that refuses once is asked again") {
  // Call 1 fills the cache, call 2 fails, call 3 is the retry.
  CachingAllocator allocator(std::make_unique<FailingSource>(std::make_unique<AddressSource>(), 2));
  allocator.free(allocator.allocate(16 * kMiB));
  Block* block = allocator.allocate(32 * kMiB);
  CHECK(allocator.stats().retries == 1);
  CHECK(allocator.stats().source_frees == 1);
  allocator.free(block);
  check_consistent(allocator);
}

TEST_CASE("after any failure of the source the allocator is as it was and serves the next request") {
  for (std::size_t failing = 1; failing <= 12; ++failing) {
    CAPTURE(failing);
    const auto live = std::make_shared<AddressSource::Live>();
    {
      CachingAllocator allocator(std::make_unique<FailingSource>(std::make_unique<AddressSource>(live), failing, 2));
      std::vector<Block*> blocks;
      int failures = 0;
      for (int i = 0; i < 12; ++i) {
        try {
          blocks.push_back(allocator.allocate((i % 3 + 10) * kMiB));
        } catch (const OutOfMemoryError&) {
          ++failures;
        }
        check_consistent(allocator);
      }
      CHECK(failures >= 1);
      CHECK(blocks.size() + failures == 12);
      for (Block* block : blocks) allocator.free(block);
      allocator.empty_cache();
      CHECK(allocator.stats().reserved_bytes == 0);
    }
    CHECK(live->empty());
  }
}

TEST_CASE("reserved bytes never exceed the limit") {
  CachingAllocator allocator(card(kGiB));
  allocator.set_limit(64 * kMiB);
  REQUIRE(allocator.limit() == 64 * kMiB);
  std::size_t served = 0;
  for (int i = 0; i < 40; ++i) {
    try {
      allocator.allocate(3 * kMiB);
      ++served;
    } catch (const OutOfMemoryError& error) {
      CHECK(contains(error.cause(), "of a limit of 64.00 MiB"));
    }
    CHECK(allocator.stats().reserved_bytes <= 64 * kMiB);
  }
  // Three segments of 20 MiB hold six each; the last 4 MiB hold one more in a segment of just its size.
  CHECK(served == 19);
  check_consistent(allocator);
  allocator.set_limit(std::nullopt);
  CHECK_NOTHROW(allocator.allocate(3 * kMiB));
}

TEST_CASE("a segment of exact size serves where the usual one does not fit") {
  CachingAllocator allocator(card(kGiB));
  SUBCASE("under a limit") { allocator.set_limit(6 * kMiB); }
  SUBCASE("on a full card") { allocator.allocate(kGiB - 6 * kMiB); }
  const std::uint64_t before = allocator.stats().reserved_bytes;
  allocator.allocate(4 * kMiB + 512);
  CHECK(allocator.stats().reserved_bytes - before == 4 * kMiB + 512);
  allocator.allocate(700 * kKiB);
  CHECK(allocator.stats().reserved_bytes - before == 4 * kMiB + 512 + 700 * kKiB);
  CHECK(allocator.stats().retries == 0);
}

TEST_CASE("a limit gives back no more of the cache than it must") {
  CachingAllocator allocator(card(kGiB));
  allocator.set_limit(100 * kMiB);
  std::vector<Block*> blocks;
  for (const std::size_t mib : {30, 20, 40}) blocks.push_back(allocator.allocate(mib * kMiB, mib));
  for (Block* block : blocks) allocator.free(block);
  allocator.allocate(36 * kMiB);  // 26 MiB too many: the 30 MiB segment of another stream goes
  CHECK(allocator.stats().reserved_bytes == 96 * kMiB);
  CHECK(allocator.stats().source_frees == 1);
  CHECK(allocator.stats().retries == 1);
}

TEST_CASE("the cache survives a request that no giving back could serve") {
  CachingAllocator allocator(card(kGiB));
  allocator.set_limit(64 * kMiB);
  allocator.free(allocator.allocate(40 * kMiB));
  const OutOfMemoryError error = failure(allocator, 65 * kMiB);
  CHECK(contains(error.hint(), "this block alone exceeds the limit: raise --memory-limit"));
  CHECK(allocator.stats().reserved_bytes == 40 * kMiB);
}

TEST_CASE("a limit below what is reserved gives back what is cached and keeps what is in use") {
  CachingAllocator allocator(card(kGiB));
  Block* held = allocator.allocate(32 * kMiB);
  allocator.free(allocator.allocate(48 * kMiB));
  allocator.set_limit(16 * kMiB);
  CHECK(allocator.stats().reserved_bytes == 32 * kMiB);
  CHECK_THROWS_AS(allocator.allocate(512), OutOfMemoryError);
  allocator.free(held);
  CHECK_NOTHROW(allocator.allocate(1 * kMiB));  // from the block just freed
  check_consistent(allocator);
}

TEST_CASE("a small request breaks a large block rather than fail") {
  CachingAllocator allocator(card(kGiB));
  allocator.set_limit(20 * kMiB);
  allocator.allocate(4 * kMiB);
  Block* small = allocator.allocate(1000);
  CHECK(CachingAllocator::size(small) == 1024);
  CHECK(allocator.stats().reserved_bytes == 20 * kMiB);
  check_consistent(allocator);
  allocator.free(small);
  CHECK(allocator.stats().largest_free_block_bytes == 16 * kMiB);
}

TEST_CASE("sizes near the largest number are out of memory, not arithmetic gone round") {
  CachingAllocator allocator(std::make_unique<AddressSource>());
  allocator.allocate(100);
  constexpr std::size_t kMax = std::numeric_limits<std::size_t>::max();
  for (const std::size_t bytes : {kMax, kMax - 1, kMax - 511, kMax - 2 * kMiB, kMax / 2, kMaxBlockBytes + 1}) {
    CAPTURE(bytes);
    CHECK_THROWS_AS(allocator.allocate(bytes), OutOfMemoryError);
  }
  CHECK(allocator.stats().out_of_memory == 6);
  CachingAllocator host(std::make_unique<HostSource>());
  CHECK_THROWS_AS(host.allocate(kMaxBlockBytes), OutOfMemoryError);
  check_consistent(allocator);
}

TEST_CASE("memory of a private pool is kept even when another request fails for it") {
  CachingAllocator allocator(card(32 * kMiB));
  const PoolId graph = allocator.create_private_pool();
  allocator.free(allocator.allocate(24 * kMiB, 0, graph));
  const OutOfMemoryError error = failure(allocator, 16 * kMiB);
  CHECK(contains(error.hint(), "24.00 MiB lie free in the pools of other streams or captured graphs"));
  allocator.release_private_pool(graph);
  CHECK_NOTHROW(allocator.allocate(16 * kMiB));
}

TEST_CASE("a limit below what is reserved leaves a private pool's free memory where it is") {
  CachingAllocator allocator(card(kGiB));
  const PoolId graph = allocator.create_private_pool();
  allocator.free(allocator.allocate(24 * kMiB, 0, graph));
  allocator.free(allocator.allocate(12 * kMiB));
  allocator.set_limit(kMiB);
  CHECK(allocator.stats().reserved_bytes == 24 * kMiB);  // a graph may replay into it
  CHECK_NOTHROW(allocator.allocate(24 * kMiB, 0, graph));
}

TEST_CASE("the hint names the remedy that fits the cause") {
  Shortage shortage{
      .device = {DeviceKind::cuda, 1}, .requested_bytes = 2 * kGiB, .stats = {}, .limit = {}, .usage = {}};
  shortage.stats.allocated_bytes = shortage.stats.reserved_bytes = 10 * kGiB;
  const auto hint = [&] { return out_of_memory_error(shortage).hint(); };

  CHECK(contains(hint(), "--batch"));
  CHECK(contains(hint(), "--accumulate"));
  CHECK_FALSE(contains(hint(), "--memory-limit"));
  CHECK(contains(out_of_memory_error(shortage).cause(), "out of memory on cuda:1"));

  shortage.usage = SourceUsage{.free_bytes = kGiB, .total_bytes = 16 * kGiB, .other_processes_bytes = 5 * kGiB};
  CHECK(contains(hint(), "other processes hold 5.00 GiB"));
  CHECK(contains(hint(), "--device"));

  shortage.limit = 11 * kGiB;
  CHECK(contains(hint(), "other processes"));  // the limit is not what stands in the way
  shortage.usage->free_bytes = 3 * kGiB;
  CHECK(contains(hint(), "raise --memory-limit"));

  shortage.requested_bytes = 20 * kGiB;
  shortage.limit.reset();
  CHECK(contains(hint(), "exceeds the device"));
}
