// The caching allocator beside malloc: cached pairs by size and a random workload; and what it reserves beyond the peak
// in use when the requests of ResNet-50 training are replayed. Prints a table, or JSON lines with --json.
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
template <class Work> double fastest_ns(std::size_t operations, Work work) {
  double best = 1e30;
  for (int run = 0; run < 15; ++run) {
    const auto start = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - start;
    best = std::min(best, elapsed.count() / static_cast<double>(operations));
  }
  return best;
}

template <class Allocator> double pair_ns(Allocator allocator, std::size_t bytes, bool touch) {
  const std::size_t pairs = touch ? 256 * kMiB / bytes : 20000;
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

/// An activation and the weight that made it.
struct Layer {
  std::size_t elements_per_image, weights;
};

std::vector<Layer> resnet50() {
  std::vector<Layer> layers{{64 * 112 * 112, 9408}, {64 * 56 * 56, 0}};
  const std::size_t depths[] = {3, 4, 6, 3};
  std::size_t channels = 64, side = 56, width = 64;
  for (const std::size_t depth : depths) {
    for (std::size_t i = 0; i < depth; ++i) {
      const std::size_t pixels = side * side;
      layers.push_back({width * pixels, channels * width});
      layers.push_back({width * pixels, 9 * width * width});
      layers.push_back({4 * width * pixels, 4 * width * width});
      if (i == 0) layers.push_back({4 * width * pixels, channels * 4 * width});
      channels = 4 * width;
    }
    width *= 2;
    side /= 2;
  }
  layers.push_back({2048, 0});
  layers.push_back({1000, 2048 * 1000});
  return layers;
}

/// The requests of a training step: each layer saves a convolution's and a normalisation's output, the backward frees
/// them last to first while a gradient passes from layer to layer, and the weights' gradients live until the end.
void replay_step(CachingAllocator& allocator, const std::vector<Layer>& layers, std::size_t batch) {
  std::vector<Block*> saved, gradients;
  const auto activation = [&](const Layer& layer) {
    return allocator.allocate(batch * layer.elements_per_image * sizeof(float));
  };
  for (const Layer& layer : layers) {
    saved.push_back(activation(layer));
    saved.push_back(activation(layer));
  }
  Block* gradient = activation(layers.back());
  for (std::size_t i = layers.size(); i-- > 0;) {
    Block* next = activation(layers[i]);
    allocator.free(gradient);
    gradient = next;
    if (layers[i].weights) gradients.push_back(allocator.allocate(layers[i].weights * sizeof(float)));
    for (int k = 0; k < 2; ++k) {
      allocator.free(saved.back());
      saved.pop_back();
    }
  }
  allocator.free(gradient);
  for (Block* each : gradients) allocator.free(each);
}

/// Replays 60 steps with batches drawn from [smallest, largest]; no page is written, so this needs no memory.
cuttle::memory::Stats replay(std::size_t smallest, std::size_t largest) {
  CachingAllocator allocator(std::make_unique<cuttle::memory::HostSource>());
  const std::vector<Layer> layers = resnet50();
  std::mt19937 random(3);
  for (int step = 0; step < 60; ++step) {
    replay_step(allocator, layers, smallest + random() % (largest - smallest + 1));
  }
  return allocator.stats();
}

void print_replay(bool json, std::size_t smallest, std::size_t largest) {
  const cuttle::memory::Stats stats = replay(smallest, largest);
  if (json) {
    fmt::print(
        "{{\"bench\":\"allocator\",\"name\":\"replay of resnet50\",\"batch\":[{},{}],\"peak_allocated_bytes\":{},"
        "\"peak_reserved_bytes\":{},\"source_allocations\":{}}}\n",
        smallest, largest, stats.peak_allocated_bytes, stats.peak_reserved_bytes, stats.source_allocations);
    return;
  }
  const auto mib = [](std::uint64_t bytes) { return static_cast<double>(bytes) / kMiB; };
  fmt::print("{:<44} {:>12.0f} {:>12.0f} {:>8.2f}\n",
             fmt::format("replay of resnet50, batch {} to {}", smallest, largest), mib(stats.peak_allocated_bytes),
             mib(stats.peak_reserved_bytes), mib(stats.peak_reserved_bytes) / mib(stats.peak_allocated_bytes));
}

void print(bool json, std::string_view name, double cuttle_ns, double malloc_ns) {
  if (json) {
    fmt::print(
        "{{\"bench\":\"allocator\",\"name\":\"{}\",\"cuttle_ns\":{:.1f},\"malloc_ns\":{:.1f},\"ratio\":{:.3f}}}\n",
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

  const std::pair<const char*, std::size_t> sizes[] = {{"512 B", 512},  {"16 KiB", 16 * kKiB}, {"256 KiB", 256 * kKiB},
                                                       {"1 MiB", kMiB}, {"4 MiB", 4 * kMiB},   {"64 MiB", 64 * kMiB}};
  for (const auto& [name, bytes] : sizes) {
    print(json, fmt::format("cached pair, {}", name), pair_ns(Cuttle{allocator}, bytes, false),
          pair_ns(Malloc{}, bytes, false));
  }
  print(json, "cached pair and writing it, 4 MiB", pair_ns(Cuttle{allocator}, 4 * kMiB, true),
        pair_ns(Malloc{}, 4 * kMiB, true));
  print(json, "cached pair and writing it, 64 MiB", pair_ns(Cuttle{allocator}, 64 * kMiB, true),
        pair_ns(Malloc{}, 64 * kMiB, true));

  constexpr std::size_t kSlots = 400;
  for (const auto& [name, bits] :
       {std::pair{"random workload, up to 64 KiB", 16}, {"random workload, up to 4 MiB", 22}}) {
    const auto operations = random_operations(100000, kSlots, bits);
    print(json, name, random_ns(Cuttle{allocator}, operations, kSlots), random_ns(Malloc{}, operations, kSlots));
  }

  if (!json) fmt::print("\n{:<44} {:>12} {:>12} {:>8}\n", "MiB, at the peak", "in use", "reserved", "ratio");
  print_replay(json, 8, 16);
  print_replay(json, 32, 32);
}
