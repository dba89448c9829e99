#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "cuttle/error.hpp"
#include "cuttle/memory.hpp"
#include "memory/caching_allocator.hpp"
#include "memory/free_lists.hpp"
#include "support/address_source.hpp"
#include "support/memory_checks.hpp"
#include "support/reserving_source.hpp"

using namespace cuttle;
using namespace cuttle::memory;
using cuttle::test::card;
using cuttle::test::check_consistent;
using cuttle::test::reserving_card;

namespace {

/// Sizes as training asks for them: many small ones, and a few up to 64 MiB.
std::size_t random_size(std::mt19937& random) {
  const int bits = std::uniform_int_distribution<int>(0, 26)(random);
  return std::uniform_int_distribution<std::size_t>(1, std::size_t{1} << bits)(random);
}

/// Blocks in use by address, refusing any overlap.
class Ledger {
 public:
  void add(const Block* block) {
    const auto* start = static_cast<const std::byte*>(CachingAllocator::pointer(block));
    const auto* end = start + CachingAllocator::size(block);
    const auto after = ends_.lower_bound(start);
    REQUIRE((after == ends_.end() || end <= after->first));
    REQUIRE((after == ends_.begin() || std::prev(after)->second <= start));
    ends_.emplace(start, end);
  }
  void remove(const Block* block) { ends_.erase(static_cast<const std::byte*>(CachingAllocator::pointer(block))); }

 private:
  std::map<const std::byte*, const std::byte*> ends_;
};

}  // namespace

TEST_CASE("thousands of random requests keep every invariant") {
  for (const unsigned seed : {1u, 2u, 3u, 4u, 5u, 6u}) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    CachingAllocator allocator(seed % 2 ? card(512 * kMiB) : reserving_card(512 * kMiB));
    const std::vector<PoolId> pools{0, allocator.create_private_pool()};
    std::vector<Block*> held;
    Ledger ledger;
    int failures = 0;
    for (int i = 0; i < 6000; ++i) {
      const bool shrinking = i / 500 % 2 == 1;
      if (!held.empty() && random() % 100 < (shrinking ? 60u : 40u)) {
        std::swap(held[random() % held.size()], held.back());
        ledger.remove(held.back());
        allocator.free(held.back());
        held.pop_back();
      } else {
        try {
          const std::size_t bytes = random_size(random);
          const Stream stream = random() % 3;
          held.push_back(allocator.allocate(bytes, stream, pools[random() % 2]));
          ledger.add(held.back());
        } catch (const OutOfMemoryError&) {
          ++failures;
        }
      }
      if (random() % 400 == 0) allocator.empty_cache();
      if (random() % 200 == 0)
        allocator.set_limit(random() % 2 ? std::optional(random() % (512 * kMiB)) : std::nullopt);
      if (i % 10 == 0) check_consistent(allocator);
    }
    CHECK(failures > 0);  // the card was small enough for the paths of want to be taken
    CHECK(allocator.stats().retries > 0);
    for (Block* block : held) allocator.free(block);
    check_consistent(allocator);
    allocator.release_private_pool(pools[1]);
    check_consistent(allocator);
    CHECK(allocator.stats().free_blocks == allocator.snapshot().size());
    allocator.empty_cache();
    CHECK(allocator.stats().reserved_bytes == 0);
    CHECK(allocator.stats().allocated_bytes == 0);
    CHECK(allocator.stats().requested_bytes == 0);
  }
}

TEST_CASE("the free lists find what a search through all blocks finds") {
  std::mt19937 random(7);
  FreeLists lists;
  std::multimap<std::size_t, Block*> reference;
  std::vector<std::unique_ptr<Block>> blocks;
  for (int i = 0; i < 5000; ++i) {
    if (reference.size() < 300 || random() % 2) {
      Block* block = blocks.emplace_back(std::make_unique<Block>()).get();
      block->bytes = round_up(random_size(random), kRounding);
      lists.insert(block);
      reference.emplace(block->bytes, block);
    } else {
      auto victim = std::next(reference.begin(), static_cast<long>(random() % reference.size()));
      lists.remove(victim->second);
      reference.erase(victim);
    }
    const std::size_t wanted = round_up(random_size(random), kRounding);
    const auto expected = reference.lower_bound(wanted);
    const Block* found = lists.best_fit(wanted);
    REQUIRE((found == nullptr) == (expected == reference.end()));
    if (found) REQUIRE(found->bytes == expected->first);
    REQUIRE(lists.largest_bytes() == reference.rbegin()->first);
    REQUIRE(lists.count() == reference.size());
  }
}

TEST_CASE("the free lists take the largest block there can be") {
  FreeLists lists;
  Block block;
  block.bytes = kMaxBlockBytes;
  lists.insert(&block);
  CHECK(lists.best_fit(kMaxBlockBytes) == &block);
  CHECK(lists.best_fit(512) == &block);
  CHECK(lists.largest_bytes() == kMaxBlockBytes);
  lists.remove(&block);
  CHECK(lists.best_fit(512) == nullptr);
  CHECK(lists.largest_bytes() == 0);
}

TEST_CASE("threads share an allocator, and nobody writes into another's block") {
  CachingAllocator allocator(std::make_unique<HostSource>());
  allocator.set_limit(256 * kMiB);
  std::vector<std::thread> threads;
  std::vector<int> spoiled(4, 0);
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&allocator, &spoiled, t] {
      std::mt19937 random(t);
      std::vector<std::pair<Block*, unsigned char>> held;
      const auto check_and_free = [&] {
        const auto [block, mark] = held.back();
        const auto* bytes = static_cast<const unsigned char*>(CachingAllocator::pointer(block));
        if (bytes[0] != mark || bytes[CachingAllocator::size(block) - 1] != mark) ++spoiled[t];
        allocator.free(block);
        held.pop_back();
      };
      for (int i = 0; i < 2000; ++i) {
        if (held.size() < 20 && random() % 2) {
          Block* block = allocator.allocate(random() % 20000 + 1, t % 2);
          const auto mark = static_cast<unsigned char>(random());
          std::memset(CachingAllocator::pointer(block), mark, CachingAllocator::size(block));
          held.emplace_back(block, mark);
        } else if (!held.empty()) {
          std::swap(held[random() % held.size()], held.back());
          check_and_free();
        }
        if (i % 300 == 0) allocator.empty_cache();
        if (i % 500 == 0) allocator.snapshot();
      }
      while (!held.empty()) check_and_free();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const int count : spoiled) CHECK(count == 0);
  check_consistent(allocator);
  allocator.empty_cache();
  CHECK(allocator.stats().reserved_bytes == 0);
}
