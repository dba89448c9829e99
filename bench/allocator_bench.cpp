// The caching allocator beside malloc: cached pairs by size, a random workload, and the segments that training shapes
// need. Prints a table, or JSON lines with --json.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string_view>
#include <vector>

#include "cuttle/memory.hpp"

namespace {

using cuttle::memory::Block;
using cuttle::memory::CachingAllocator;

constexpr std::size_t kKiB = 1024, kMiB = 1024 * kKiB;

/// Tells the compiler that the memory matters, so that it keeps the call (it may drop a malloc that nobody looks at).
void keep(void* pointer) { asm volatile("" : : "g"(pointer) : "memory"); }

struct Malloc {
  using Handle = void*;
  static Handle allocate(std::size_t bytes) { return std::malloc(bytes); }
  static void free(Handle handle) { std::free(handle); }
  static void* pointer(Handle handle) { return handle; }
};

struct Cuttle {
  using Handle = Block*;
  CachingAllocator& allocator;
  Handle allocate(std::size_t bytes) { return allocator.allocate(bytes); }
  void free(Handle handle) { allocator.free(handle); }
  static void* pointer(Handle handle) { return CachingAllocator::pointer(handle); }
};

/// Nanoseconds a call of `work`, which does `operations` of them: the least of several runs, since other processes can
/// only slow it down.
template <class Work>
double fastest_ns(std::size_t operations, Work work) {
  double best = 1e30;
  for (int run = 0; run < 15; ++run) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - start;
    best = std::min(best, elapsed.count() / static_cast<double>(operations));
  }
  return best;
}

template <class Allocator>
double pair_ns(Allocator allocator, std::size_t bytes, bool touch) {
  const std::size_t pairs = touch ? 200 : 200000;
  return fastest_ns(pairs, [&] {
    for (std::size_t i = 0; i < pairs; ++i) {
      const auto handle = allocator.allocate(bytes);
      if (touch) std::memset(allocator.pointer(handle), 1, bytes);
      keep(allocator.pointer(handle));
      allocator.free(handle);
    }
  });
}

/// One request or one free of a random workload; index says which slot.
struct Operation {
  std::size_t slot, bytes;
};

std::vector<Operation> random_operations(std::size_t count, std::size_t slots, int max_bits) {
  std::mt19937 random(1);
  std::vector<Operation> operations(count);
  for (Operation& operation : operations) {
    const int bits = std::uniform_int_distribution<int>(6, max_bits)(random);
    operation = {random() % slots, std::uniform_int_distribution<std::size_t>(1, std::size_t{1} << bits)(random)};
  }
  return operations;
}

/// Each operation frees what its slot holds and puts a new block there.
template <class Allocator>
double random_ns(Allocator allocator, const std::vector<Operation>& operations, std::size_t slots) {
  return fastest_ns(operations.size(), [&] {
    std::vector<typename Allocator::Handle> held(slots);
    for (const Operation& operation : operations) {
      if (held[operation.slot]) allocator.free(held[operation.slot]);
      held[operation.slot] = allocator.allocate(operation.bytes);
      keep(allocator.pointer(held[operation.slot]));
    }
    for (const auto handle : held) {
      if (handle) allocator.free(handle);
    }
  });
}

void print(bool json, std::string_view name, double cuttle_ns, double malloc_ns) {
  if (json) {
    fmt::print("{{\"bench\":\"allocator\",\"name\":\"{}\",\"cuttle_ns\":{:.1f},\"malloc_ns\":{:.1f},\"ratio\":{:.3f}}}\n",
               name, cuttle_ns, malloc_ns, cuttle_ns / malloc_ns);
  } else {
    fmt::print("{:<44} {:>12.1f} {:>12.1f} {:>8.2f}\n", name, cuttle_ns, malloc_ns, cuttle_ns / malloc_ns);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool json = argc > 1 && std::string_view(argv[1]) == "--json";
  if (!json) fmt::print("{:<44} {:>12} {:>12} {:>8}\n", "ns a pair of allocate and free", "cuttle", "malloc", "ratio");
  CachingAllocator allocator(std::make_unique<cuttle::memory::HostSource>());

  const std::pair<const char*, std::size_t> sizes[] = {{"512 B", 512},           {"16 KiB", 16 * kKiB},
                                                       {"256 KiB", 256 * kKiB},  {"1 MiB", kMiB},
                                                       {"4 MiB", 4 * kMiB},      {"64 MiB", 64 * kMiB}};
  for (const auto& [name, bytes] : sizes) {
    print(json, fmt::format("cached pair, {}", name), pair_ns(Cuttle{allocator}, bytes, false),
          pair_ns(Malloc{}, bytes, false));
  }
  print(json, "cached pair and writing it, 4 MiB", pair_ns(Cuttle{allocator}, 4 * kMiB, true),
        pair_ns(Malloc{}, 4 * kMiB, true));
  print(json, "cached pair and writing it, 64 MiB", pair_ns(Cuttle{allocator}, 64 * kMiB, true),
        pair_ns(Malloc{}, 64 * kMiB, true));

  constexpr std::size_t kSlots = 400;
  for (const auto& [name, bits] : {std::pair{"random workload, up to 64 KiB", 16}, {"random workload, up to 4 MiB", 22}}) {
    const auto operations = random_operations(100000, kSlots, bits);
    print(json, name, random_ns(Cuttle{allocator}, operations, kSlots), random_ns(Malloc{}, operations, kSlots));
  }
}
