#include <doctest/doctest.h>

#include <memory>
#include <string>

#include "cuttle/autograd.hpp"
#include "cuttle/data.hpp"
#include "cuttle/memory.hpp"
#include "cuttle/models.hpp"
#include "cuttle/optim.hpp"
#include "kernels.hpp"
#include "memory/caching_allocator.hpp"
#include "support/idle_kernels.hpp"
#include "train/stepper.hpp"

/// What training steps of real models need, with kernels that compute nothing.

using namespace cuttle;

namespace {

/// To record is to allocate, to replay is nothing.
struct Allocated final : CapturedWork {
  void replay() override {}
};
std::unique_ptr<CapturedWork> only_allocate(int, const std::function<void()>& work) {
  work();
  return std::make_unique<Allocated>();
}

struct Need {
  std::uint64_t allocated, reserved;  ///< at their peaks, beside what was there before
  bool captured;
  std::uint64_t grown_by_testing;
};

Need need_of(const char* model, std::int64_t batch, std::int64_t size, std::int64_t classes) {
  memory::CachingAllocator& allocator = memory::allocator(kCpu);
  empty_cache();
  const memory::Stats before = allocator.stats();
  const data::ImageSet set = data::synthetic(batch, 3, size, size, classes);
  const data::Batch images = data::Loader(set, {.batch = batch}).load(0, 0);
  const auto module = models::find(model).make(3, size, classes);
  optim::SGD sgd(module->parameters(), {.lr = 0.1, .momentum = 0.9});
  const test::IdleKernels idle;
  backend(DeviceKind::cpu).capture = only_allocate;
  train::Stepper stepper(*module, sgd, {});
  allocator.reset_peak_stats();
  for (int i = 0; i < 6; ++i) {
    stepper.step({.batches = 1, .images = batch, .load = [&](std::int64_t, const data::Batch&) { return images; }},
                 0.1);
  }
  while (stepper.next(true)) continue;
  backend(DeviceKind::cpu).capture = nullptr;
  const memory::Stats after = allocator.stats();
  {
    const NoGrad no_grad;
    const AllocationScope scope = stepper.memory_scope();
    module->eval();
    (*module)(images.images);
  }
  return {after.peak_allocated_bytes - before.allocated_bytes, after.peak_reserved_bytes - before.reserved_bytes,
          stepper.captured(), allocator.stats().peak_reserved_bytes - after.peak_reserved_bytes};
}

}  // namespace

TEST_CASE("a recorded step reserves at most a tenth more than it has in use, and testing between steps adds nothing") {
  struct Case {
    const char* model;
    std::int64_t batch, size, classes;
  };
  for (const Case& c :
       {Case{"resnet18", 16, 224, 1000}, {"mobilenet_v2", 8, 224, 1000}, {"resnet18_cifar", 128, 32, 10}}) {
    CAPTURE(std::string(c.model));
    const Need need = need_of(c.model, c.batch, c.size, c.classes);
    CHECK(need.captured);
    CHECK(need.reserved < need.allocated + need.allocated / 10);
    CHECK(need.grown_by_testing <= memory::kLeastExtent);
  }
}

TEST_CASE("ResNet-18's step keeps no activation that its backward can do without") {
  const std::uint64_t batch = 16, pixel = batch * sizeof(float), weights = 11'689'512 * sizeof(float);
  // Outputs of convolutions, and of batch norms but the stem's, which max pooling passes on at a quarter of the size.
  const std::uint64_t stem = 64 * 112 * 112 + 64 * 56 * 56 + 64 * 56 * 56 / 4,
                      stages =
                          8 * 64 * 56 * 56 + (8 + 1) * 128 * 28 * 28 + (8 + 1) * 256 * 14 * 14 + (8 + 1) * 512 * 7 * 7;
  const Need need = need_of("resnet18", static_cast<std::int64_t>(batch), 224, 1000);
  const std::uint64_t images = 3 * 224 * 224, last = 512 * 7 * 7;
  const std::uint64_t kept = 2 * weights + pixel * (images + stem + stages + last);
  CHECK(need.allocated > kept);
  CHECK(need.allocated < kept + weights);  // the first gradients of weights come while most activations are there
}
