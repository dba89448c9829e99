#include <doctest/doctest.h>

#include <stdexcept>

#include "core/capture.hpp"
#include "cuda/gpu.hpp"
#include "cuttle/autograd.hpp"
#include "cuttle/memory.hpp"
#include "cuttle/ops.hpp"

using namespace cuttle;
using namespace cuttle::testing;

namespace {

/// A private pool for as long as a recorded step lives.
class StepPool {
 public:
  StepPool() : id(memory::allocator(gpu()).create_private_pool()) {}
  ~StepPool() { memory::allocator(gpu()).release_private_pool(id); }
  StepPool(const StepPool&) = delete;
  StepPool& operator=(const StepPool&) = delete;

  std::unique_ptr<CapturedWork> record(const std::function<void()>& work) const {
    const AllocationScope scope(gpu(), id);
    return gpu_backend().capture(gpu().index, work);
  }

  const memory::PoolId id;
};

}  // namespace

TEST_CASE("cuda: a recorded step runs at each replay and not before, on the memory's current contents") {
  const StepPool pool;
  Tensor x = Tensor::full({1000}, 1, {.device = gpu()}), y = Tensor::full({1000}, 5, {.device = gpu()});
  const auto step = pool.record([&] {
    NoGrad no_grad;
    const Tensor twice = add(x, x);  // scratch, freed within the step
    add_(y, twice);
  });
  CHECK(all_equal(y, 5));
  step->replay();
  CHECK(all_equal(y, 7));
  x.fill_(10);
  step->replay();
  step->replay();
  CHECK(all_equal(y, 47));
}

TEST_CASE("cuda: scratch of a recorded step is nobody else's between replays") {
  const StepPool pool;
  Tensor x = Tensor::full({1 << 20}, 3, {.device = gpu()}), y;
  const auto step = pool.record([&] {
    NoGrad no_grad;
    y = add(add(x, x), x);
  });
  for (int i = 0; i < 5; ++i) {
    empty_cache();
    std::vector<Tensor> others;
    for (int k = 0; k < 8; ++k) others.push_back(Tensor::full({1 << 20}, k, {.device = gpu()}));
    step->replay();
    for (int k = 0; k < 8; ++k) REQUIRE(all_equal(others[static_cast<std::size_t>(k)], static_cast<float>(k)));
    REQUIRE(all_equal(y, 9));
  }
}

TEST_CASE("cuda: memory comes and goes while a step is recorded") {
  constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
  memory::CachingAllocator& allocator = memory::allocator(gpu());
  const Tensor x = Tensor::full({40 << 18}, 3, {.device = gpu()});  // 40 MiB
  empty_cache();
  {
    std::vector<Tensor> small;
    for (int k = 0; k < 60; ++k) small.push_back(Tensor::full({1 << 18}, 1, {.device = gpu()}));
  }
  allocator.set_limit(allocator.stats().reserved_bytes + 30 * kMiB);
  const std::uint64_t retries = allocator.stats().retries;
  Tensor y;
  const StepPool pool;
  const auto step = pool.record([&] {
    NoGrad no_grad;
    y = add(add(x, x), x);  // 80 MiB more: the small tensors' memory has to go
  });
  allocator.set_limit(std::nullopt);
  CHECK(allocator.stats().retries > retries);
  step->replay();
  CHECK(all_equal(y, 9));
}

TEST_CASE("cuda: a recorded convolution keeps its workspace when a later one needs more") {
  const auto options = Conv2dOptions{.padding = 1};
  const auto run = [&](const Tensor& x, const Tensor& w) { return conv2d(x, w, {}, options); };
  NoGrad no_grad;
  const Tensor x = Tensor::randn({8, 16, 14, 14}).to(gpu()), w = Tensor::randn({32, 16, 3, 3}).to(gpu());
  const auto expected = run(x, w).to_vector<float>();
  Tensor y;
  const StepPool pool;
  const auto step = pool.record([&] { y = run(x, w); });
  const Tensor larger = Tensor::randn({64, 64, 56, 56}).to(gpu()), w2 = Tensor::randn({64, 64, 3, 3}).to(gpu());
  run(larger, w2);
  empty_cache();
  step->replay();
  CHECK(y.to_vector<float>() == expected);
}

TEST_CASE("cuda: what cannot be recorded is refused, and the device works on") {
  Tensor x = Tensor::full({100}, 2, {.device = gpu()});
  const Tensor host = Tensor::full({1 << 20}, 1);
  const std::vector<std::pair<const char*, std::function<void()>>> impossible{
      {"to the host", [&] { x.to_vector<float>(); }},
      {"from the host", [&] { host.to(gpu()); }},
      {"a few bytes from the host", [&] { host.slice(0, 4).to(gpu()); }},
      {"read_back", [&] { gpu_backend().read_back(x); }},
      {"upload", [&] { gpu_backend().upload(x, host.raw_data()); }},
      {"synchronize", [&] { synchronize(gpu()); }},
      {"a recording in a recording", [&] { gpu_backend().capture(gpu().index, [] {}); }},
  };
  for (const auto& [name, work] : impossible) {
    CAPTURE(name);
    const StepPool pool;
    CHECK_THROWS_AS(pool.record([&] {
      x.fill_(99);
      work();
    }),
                    DeviceError);
    CHECK(all_equal(x, 2));  // nothing of it ran
    CHECK(all_equal(add(x, x), 4));
  }
}

TEST_CASE("cuda: the exception of a step that is being recorded comes through, and the device works on") {
  const StepPool pool;
  Tensor x = Tensor::full({100}, 2, {.device = gpu()});
  CHECK_THROWS_WITH_AS(pool.record([&] {
    x.fill_(3);
    throw std::runtime_error("the step's own");
  }),
                       "the step's own", std::runtime_error);
  CHECK(all_equal(x, 2));
  const auto step = pool.record([&] { x.fill_(4); });
  step->replay();
  CHECK(all_equal(x, 4));
}

TEST_CASE("cuda: a dropped step gives its memory back") {
  auto& allocator = memory::allocator(gpu());
  synchronize(gpu());
  empty_cache();
  const auto before = allocator.stats();
  {
    const StepPool pool;
    NoGrad no_grad;
    const Tensor x = Tensor::full({1 << 22}, 1, {.device = gpu()});
    const auto step = pool.record([&] { add(add(x, x), x); });
    step->replay();
  }
  empty_cache();
  const auto after = allocator.stats();
  CHECK(after.allocated_bytes <= before.allocated_bytes);
  CHECK(after.reserved_bytes <= before.reserved_bytes);
}
