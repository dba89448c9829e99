#include <doctest/doctest.h>

#include <string>

#include "cuda/gpu.hpp"
#include "cuttle/memory.hpp"
#include "cuttle/models.hpp"
#include "cuttle/ops.hpp"
#include "support/failing_source.hpp"

using namespace cuttle;
using namespace cuttle::testing;

namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

/// While it lives, the GPU's allocator may reserve this much more than it does now.
class RoomFor {
 public:
  explicit RoomFor(std::uint64_t bytes) {
    auto& allocator = memory::allocator(gpu());
    empty_cache();
    allocator.set_limit(allocator.stats().reserved_bytes + bytes);
  }
  ~RoomFor() { memory::allocator(gpu()).set_limit(std::nullopt); }
  RoomFor(const RoomFor&) = delete;
  RoomFor& operator=(const RoomFor&) = delete;
};

bool device_works() { return all_equal(Tensor::full({1000}, 3, {.device = gpu()}), 3); }

}  // namespace

TEST_CASE("cuda: the memory limit gives an out-of-memory error and leaves the device working") {
  {
    const RoomFor room(64 * kMiB);
    const memory::Stats stats = memory::allocator(gpu()).stats();
    CHECK_THROWS_AS(bytes_on(gpu(), 65 * kMiB + stats.reserved_bytes - stats.allocated_bytes), OutOfMemoryError);
    CHECK(device_works());
    CHECK_NOTHROW(bytes_on(gpu(), 40 * kMiB));
  }
  CHECK(device_works());
}

TEST_CASE("cuda: a request that the card has no room for leaves no error behind") {
  const auto usage = gpu_backend().make_source(gpu().index)->usage();
  REQUIRE(usage.has_value());
  CHECK(usage->free_bytes <= usage->total_bytes);
  CHECK(usage->free_bytes + usage->other_processes_bytes <= usage->total_bytes);
  try {
    bytes_on(gpu(), usage->total_bytes + kMiB);
    FAIL("the card cannot have that much");
  } catch (const OutOfMemoryError& error) {
    CHECK(std::string(error.cause()).find("other processes hold") != std::string::npos);
  }
  CHECK(device_works());
  synchronize(gpu());
}

TEST_CASE("cuda: an allocator over a source that fails asks again and then reports") {
  memory::CachingAllocator allocator(
      std::make_unique<test::FailingSource>(gpu_backend().make_source(gpu().index), 2, 1), gpu());
  allocator.free(allocator.allocate(100));
  CHECK_NOTHROW(allocator.free(allocator.allocate(50 * kMiB)));
  CHECK(allocator.stats().retries == 1);
  CHECK(device_works());
}

TEST_CASE("cuda: a block spans what the card gave in pieces, and what was given back comes again") {
  memory::CachingAllocator allocator(gpu_backend().make_source(gpu().index), gpu());
  const std::size_t bytes = 90 * kMiB;
  for (const std::uint32_t seed : {1u, 2u}) {
    std::vector<memory::Block*> pieces;
    for (int i = 0; i < 3; ++i) pieces.push_back(allocator.allocate(30 * kMiB));
    for (memory::Block* piece : pieces) allocator.free(piece);
    memory::Block* const block = allocator.allocate(bytes);
    void* const pointer = memory::CachingAllocator::pointer(block);
    const std::vector<std::uint8_t> sent = some_bytes(bytes, seed);
    std::vector<std::uint8_t> received(bytes);
    gpu_backend().copy(pointer, gpu(), sent.data(), kCpu, bytes);
    gpu_backend().copy(received.data(), kCpu, pointer, gpu(), bytes);
    CHECK(received == sent);
    CHECK(allocator.stats().reserved_bytes >= bytes);
    CHECK(allocator.stats().reserved_bytes <= 2 * bytes);
    allocator.free(block);
    CHECK(allocator.empty_cache() >= bytes);
    CHECK(allocator.stats().reserved_bytes == 0);
  }
  CHECK(device_works());
}

TEST_CASE("cuda: a training step that runs out of memory anywhere is abandoned cleanly, and the next one runs") {
  auto net = models::find("lenet").make(1, 28, 10);
  net->to(gpu());
  const Tensor images = Tensor::randn({256, 1, 28, 28}).to(gpu());
  const Tensor targets = Tensor::zeros({256}, {.dtype = DType::i64}).to(gpu());
  const auto step = [&] {
    const Tensor loss = cross_entropy((*net)(images), targets);
    loss.backward();
    for (Tensor& p : net->parameters()) p.set_grad({});
    return loss.item<float>();
  };
  const float expected = step();
  auto& allocator = memory::allocator(gpu());
  empty_cache();
  const std::uint64_t held = allocator.stats().allocated_bytes;

  int failures = 0;
  bool done = false;
  for (std::uint64_t room = 0; !done && room < 4096 * kMiB; room += failures < 40 ? 2 * kMiB : 64 * kMiB) {
    const RoomFor limited(room);
    try {
      const float loss = step();  // outside CHECK, which would catch the exception
      CHECK(loss == doctest::Approx(expected).epsilon(1e-4));
      done = true;
    } catch (const OutOfMemoryError&) {
      ++failures;
      for (Tensor& p : net->parameters()) p.set_grad({});
    }
    // Nothing may have been added on the way.
    REQUIRE(allocator.stats().allocated_bytes <= held);
  }
  CHECK(done);
  CHECK(failures > 0);
  CHECK(step() == doctest::Approx(expected).epsilon(1e-4));
}

TEST_CASE("cuda: devices have names, memory and numbers, and others are refused") {
  const auto found = devices(DeviceKind::cuda);
  REQUIRE_FALSE(found.empty());
  for (const DeviceInfo& info : found) {
    CHECK_FALSE(info.name.empty());
    CHECK(info.total_bytes > 0);
    CHECK(info.free_bytes <= info.total_bytes);
  }
  CHECK(Device::parse("auto").is_cuda());
  CHECK(Device::parse("cuda") == Device{DeviceKind::cuda, 0});
  CHECK_THROWS_AS(Device::parse("cuda:63"), DeviceError);
  CHECK_THROWS_AS(bytes_on({DeviceKind::cuda, 63}, 1), DeviceError);
  CHECK_THROWS_AS(synchronize({DeviceKind::cuda, 63}), DeviceError);
  bool cudnn = false;
  for (const auto& [name, version] : gpu_backend().facts()) cudnn = cudnn || (name == "cuDNN" && version[0] == '9');
  CHECK(cudnn);
}
