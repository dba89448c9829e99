#include <doctest/doctest.h>

#include <atomic>
#include <cstring>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "core/capture.hpp"
#include "cuttle/data.hpp"
#include "cuttle/error.hpp"
#include "cuttle/memory.hpp"
#include "cuttle/threads.hpp"
#include "data/workers.hpp"
#include "kernels.hpp"

/// What a loader does before it is asked: gathering in threads, and the way to the device, imitated on the CPU.
namespace {

using namespace cuttle;
using data::ImageSet;
using data::Loader;
using data::LoaderOptions;

/// As a user would write one; it shows whether an image met its own key.
void add_noise(std::span<std::uint8_t> image, const ImageSet&, PhiloxKey key) {
  for (std::uint8_t& pixel : image) {
    pixel = static_cast<std::uint8_t>(pixel + philox4x32(key.seed, key.stream, key.offset++)[0] % 64);
  }
}

using Bits = std::vector<std::pair<std::vector<float>, std::vector<std::int64_t>>>;

Bits bits_of(const Loader& loader, std::int64_t epochs) {
  Bits bits;
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
    for (std::int64_t b = 0; b < loader.batches(); ++b) {
      const data::Batch batch = loader.load(epoch, b);
      bits.emplace_back(batch.images.to_vector<float>(), batch.labels.to_vector<std::int64_t>());
    }
  }
  return bits;
}

/// Uploads that bring their bytes at the last moment, and what became of them.
struct Uploads {
  int started = 0, joined = 0, dropped = 0;
};
Uploads uploads;

class LateUpload final : public Upload {
 public:
  LateUpload(const Tensor& to, const void* from) : to_(to), bytes_(to.nbytes()) {
    std::memcpy(bytes_.data(), from, bytes_.size());
    std::memset(to.raw_mutable_data(), 0xEE, bytes_.size());
    ++uploads.started;
  }
  ~LateUpload() override { uploads.dropped += joined_ ? 0 : 1; }
  void join() override {
    std::memcpy(to_.raw_mutable_data(), bytes_.data(), bytes_.size());
    joined_ = true;
    ++uploads.joined;
  }

 private:
  Tensor to_;
  std::vector<std::uint8_t> bytes_;
  bool joined_ = false;
};

/// Gives the CPU such uploads while it lives.
class UploadScope {
 public:
  UploadScope() {
    uploads = {};
    backend(DeviceKind::cpu).upload = [](const Tensor& to, const void* from) -> std::unique_ptr<Upload> {
      return std::make_unique<LateUpload>(to, from);
    };
  }
  ~UploadScope() { backend(DeviceKind::cpu).upload = nullptr; }
  UploadScope(const UploadScope&) = delete;
  UploadScope& operator=(const UploadScope&) = delete;
};

/// What the allocator did, in order: kind and bytes of each call.
using Calls = std::vector<std::pair<memory::Event::Kind, std::size_t>>;

Calls calls_while(const std::function<void()>& work) {
  memory::CachingAllocator& allocator = memory::allocator(kCpu);
  Calls calls;
  allocator.set_event_hook([&](const memory::Event& event) { calls.emplace_back(event.kind, event.bytes); });
  work();
  allocator.set_event_hook({});
  return calls;
}

}  // namespace

TEST_CASE("batches have the same bits whatever the number of workers") {
  const ImageSet set = data::synthetic(203, 3, 6, 5, 10);
  for (const bool transformed : {false, true}) {
    for (const bool moved : {false, true}) {
      CAPTURE(transformed);
      CAPTURE(moved);
      // 37 images are four whole parts and a piece of one; the last batch is smaller still.
      LoaderOptions options{.batch = 37, .shuffle = true, .seed = 5, .crop_flip = moved, .num_workers = 0};
      if (transformed) options.transform = add_noise;
      const Bits expected = bits_of(Loader(set, options), 2);
      for (const int workers : {1, 2, 3, 4, 7}) {
        CAPTURE(workers);
        options.num_workers = workers;
        CHECK(bits_of(Loader(set, options), 2) == expected);
        const UploadScope scope;
        CHECK(bits_of(Loader(set, options), 2) == expected);
      }
    }
  }
}

TEST_CASE("the next batch is on its way when load returns, and waited for when it is asked for") {
  const ImageSet set = data::synthetic(40, 1, 4, 4, 10);
  const UploadScope scope;
  const Loader loader(set, {.batch = 8, .shuffle = true, .num_workers = 2});
  for (std::int64_t b = 0; b < 5; ++b) {
    loader.load(0, b);
    CHECK(uploads.joined == b + 1);
    CHECK(uploads.started == std::min<std::int64_t>(b + 2, 5));
  }
  CHECK(uploads.dropped == 0);
  loader.load(1, 0);
  loader.load(1, 3);  // not the one that is on its way
  CHECK(uploads.dropped == 1);

  uploads = {};
  const Loader alone(set, {.batch = 8, .num_workers = 0});
  for (std::int64_t b = 0; b < 5; ++b) {
    alone.load(0, b);
    CHECK(uploads.started == b + 1);
    CHECK(uploads.joined == b + 1);
  }
}

TEST_CASE("a failing transform reaches the load of its own batch, the first image first, whatever the workers") {
  const ImageSet set = data::synthetic(400, 1, 2, 2, 10);
  const auto transform = [](std::span<std::uint8_t>, const ImageSet&, PhiloxKey key) {
    const std::uint64_t index = (key.offset >> 8) & 0xFFFF;
    if (index == 250 || index == 299 || index == 399) throw std::runtime_error("image " + std::to_string(index));
  };
  for (const int workers : {0, 1, 2, 4, 7}) {
    CAPTURE(workers);
    const Loader loader(set, {.batch = 100, .transform = transform, .num_workers = workers});
    for (int time = 0; time < 3; ++time) {
      CHECK_NOTHROW(loader.load(0, 0));
      CHECK_NOTHROW(loader.load(0, 1));
      CHECK_THROWS_WITH(loader.load(0, 2), "image 250");
      CHECK_THROWS_WITH(loader.load(0, 2), "image 250");
      CHECK_THROWS_WITH(loader.load(0, 3), "image 399");
      // What was gathered for another place and failed is nobody's business.
      CHECK_NOTHROW(loader.load(0, 1));
      CHECK_NOTHROW(loader.load(0, 0));
    }
  }
}

TEST_CASE("what a loader allocates, and when, does not depend on the workers' timing") {
  const ImageSet set = data::synthetic(203, 3, 6, 5, 10);
  for (const bool uploading : {false, true}) {
    CAPTURE(uploading);
    const std::optional<UploadScope> scope = uploading ? std::optional<UploadScope>(std::in_place) : std::nullopt;
    const auto calls_with = [&](int workers) {
      const Loader loader(
          set, {.batch = 37, .shuffle = true, .crop_flip = true, .transform = add_noise, .num_workers = workers});
      loader.load(0, 0);  // what the allocator's cache holds before is not the same
      return calls_while([&] { bits_of(loader, 3); });
    };
    const Calls expected = calls_with(1);
    CHECK(expected.size() > 18 * 4);
    for (const int workers : {1, 2, 4, 7}) CHECK(calls_with(workers) == expected);
  }
}

TEST_CASE("batches made ahead do not lie in the memory of a recorded step") {
  const ImageSet set = data::synthetic(40, 3, 8, 8, 10);
  memory::CachingAllocator& allocator = memory::allocator(kCpu);
  for (const bool uploading : {false, true}) {
    const std::optional<UploadScope> scope = uploading ? std::optional<UploadScope>(std::in_place) : std::nullopt;
    const Loader loader(set, {.batch = 8, .crop_flip = true, .num_workers = 2});
    const memory::PoolId pool = allocator.create_private_pool();
    {
      const AllocationScope memory_scope(kCpu, pool);
      loader.load(0, 0);
    }
    std::size_t in_pool = 0;
    for (const memory::SegmentInfo& segment : allocator.snapshot()) {
      for (const memory::BlockInfo& block : segment.blocks) in_pool += block.pool == pool && block.allocated ? 1 : 0;
    }
    CHECK(in_pool == 0);
    allocator.release_private_pool(pool);
  }
}

TEST_CASE("a loader may go while its workers are busy, and work when another has its threads") {
  const ImageSet set = data::synthetic(300, 3, 8, 8, 10);
  const LoaderOptions options{.batch = 100, .shuffle = true, .transform = add_noise, .num_workers = 3};
  const Bits expected = bits_of(Loader(set, options), 1);
  for (int i = 0; i < 20; ++i) {
    Loader loader(set, options);
    loader.load(0, 0);
    const Loader moved = std::move(loader);
    CHECK(moved.load(0, 1).images.to_vector<float>() == expected[1].first);
    const Loader other(set, options);
    CHECK(other.load(0, 0).images.to_vector<float>() == expected[0].first);
  }
}

TEST_CASE("an impossible number of workers is refused") {
  const ImageSet set = data::synthetic(8, 1, 2, 2, 2);
  CHECK_THROWS_WITH_AS(Loader(set, {.batch = 4, .num_workers = -1}), doctest::Contains("-1 workers"), UsageError);
  CHECK_THROWS_AS(Loader(set, {.batch = 4, .num_workers = kMostThreads + 1}), UsageError);
}

TEST_CASE("workers do each part of a task once, and may give a task up") {
  for (const int threads : {0, 1, 4}) {
    CAPTURE(threads);
    data::Workers workers(threads);
    workers.wait();  // for nothing
    for (const std::int64_t parts : {0, 1, 3, 1000}) {
      std::vector<std::atomic<int>> times(static_cast<std::size_t>(parts));
      workers.start(parts, [&](std::int64_t part) { ++times[static_cast<std::size_t>(part)]; });
      workers.wait();
      for (const std::atomic<int>& n : times) REQUIRE(n == 1);
    }
    for (int i = 0; i < 50; ++i) {
      std::atomic<int> running = 0;
      workers.start(1000, [&](std::int64_t part) {
        ++running;
        if (part == 3) throw std::runtime_error("given up");
        --running;
      });
      workers.give_up();
      CHECK(running <= 1);  // of those begun only the one that threw did not come to its end
    }
    workers.start(10, [](std::int64_t part) {
      if (part > 4) throw std::runtime_error("part " + std::to_string(part));
    });
    CHECK_THROWS_WITH(workers.wait(), "part 5");
    workers.wait();
  }
}
