#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "core/capture.hpp"
#include "cuda/conv_cases.hpp"
#include "cuda/gpu.hpp"
#include "cuttle/conv.hpp"
#include "cuttle/cuttle.hpp"

using namespace cuttle;
using namespace cuttle::testing;

namespace {

using Settings = ConvSettingsScope;

/// The same convolution as a layer of its own.
ConvCase layer(ConvCase t, const ConvAlgorithms& wanted = {}) {
  t.o.choice = std::make_shared<ConvChoice>(wanted);
  return t;
}

/// A forward convolution's tensors.
struct Forward {
  ConvCase t;
  Tensor x, w, y;
  explicit Forward(const ConvCase& of, DType dtype = DType::f16, Layout layout = Layout::nhwc)
      : t(of),
        x(Tensor::randn(of.x_shape(), {.dtype = dtype, .device = gpu(), .layout = layout})),
        w(Tensor::randn(of.w_shape(), x.options())),
        y(Tensor::zeros(of.y_shape(), x.options())) {}
  void run(const ConvCase& as) const { kernels(x).conv2d(x, w, {}, as.o, false, y); }
  void run() const { run(t); }
  std::vector<float> result() const { return y.to_vector<float>(); }
};

/// What the device says computes this convolution forward.
std::optional<ConvPlan> plan_of(const ConvCase& t) {
  for (const ConvPlan& plan : gpu_backend().conv_plans(gpu().index).plans) {
    if (plan.pass == ConvPass::forward && std::ranges::equal(plan.x, t.x_shape()) &&
        std::ranges::equal(plan.w, t.w_shape())) {
      return plan;
    }
  }
  return std::nullopt;
}

double time_us(const ConvCase& t) {
  const auto plan = plan_of(t);
  REQUIRE(plan);
  return plan->time_us;
}

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

// Each case has shapes of its own: the cache is one for all.

TEST_CASE("cuda: a shape is measured when a layer comes with it again, not when layers share it") {
  const Settings settings({.policy = ConvPolicy::measure});
  const ConvCase a = layer({3, 24, 11, 15, 40, 3, 3, {.padding = 1}}), b = layer(a);
  const Forward forward(a);
  forward.run(a);
  CHECK(time_us(a) == 0);
  const std::vector<float> heuristic = forward.result();
  forward.run(b);  // the last batch of an epoch may be of a size of its own, and several layers have its shape
  CHECK(time_us(a) == 0);
  forward.run(a);
  CHECK(time_us(a) > 0);
  CHECK_FALSE(a.o.choice->used().forward.empty());
  const std::vector<float> measured = forward.result();
  for (std::size_t i = 0; i < measured.size(); ++i) {
    REQUIRE(std::abs(measured[i] - heuristic[i]) <= 0.02f * (1 + std::abs(heuristic[i])));
  }
  const double first = time_us(a);
  forward.run(a);
  CHECK(time_us(a) == first);  // once is enough
}

TEST_CASE("cuda: a limit of one candidate measures what the heuristic took") {
  const ConvCase t = layer({3, 24, 12, 15, 40, 3, 3, {.padding = 1}});
  const Forward forward(t);
  {
    const Settings settings({.policy = ConvPolicy::heuristic});
    forward.run();
  }
  const std::string heuristic = t.o.choice->used().forward;
  const Settings settings({.policy = ConvPolicy::measure, .measure_limit = 1});
  forward.run();
  forward.run();
  CHECK(t.o.choice->used().forward == heuristic);
  CHECK(time_us(t) > 0);
}

TEST_CASE("cuda: a recorded step takes the heuristic's plans and leaves measuring to others") {
  const Settings settings({.policy = ConvPolicy::measure});
  const ConvCase t = layer({3, 24, 13, 15, 40, 3, 3, {.padding = 1}});
  const Forward forward(t);
  const StepPool pool;
  const auto step = pool.record([&] {
    forward.run();
    forward.run();
  });
  CHECK(time_us(t) == 0);
  step->replay();
  const std::vector<float> replayed = forward.result();
  forward.run();
  CHECK(time_us(t) > 0);
  // The measured plan may have taken the place of the recorded one, which the step still needs.
  step->replay();
  CHECK(forward.result() == replayed);
}

TEST_CASE("cuda: a recorded step outlives the place of its plans in the cache") {
  const ConvCase t{5, 32, 13, 13, 48, 3, 3, {.padding = 1}};
  const Forward forward(t);
  const StepPool pool;
  const auto step = pool.record([&] { forward.run(); });
  step->replay();
  const std::vector<float> before = forward.result();
  {
    const Settings settings({.policy = ConvPolicy::gemm});  // which builds nothing
    for (std::int64_t n = 1; n <= 1100; ++n) Forward(ConvCase{n, 1, 1, 1, 1, 1, 1}).run();
  }
  CHECK_FALSE(plan_of(t));
  CHECK(gpu_backend().conv_plans(gpu().index).plans.size() <= 1024);
  step->replay();
  CHECK(forward.result() == before);
  forward.run();
  CHECK(plan_of(t));
}

TEST_CASE("cuda: a cached plan whose workspace memory has gone is replaced by one that fits") {
  const ConvCase t = layer({16, 64, 56, 55, 64, 3, 3, {.padding = 1}}, {.forward = "WINOGRAD_NONFUSED|auto"});
  const Forward forward(t, DType::f32, Layout::nchw);
  forward.run();
  const std::vector<float> before = forward.result();
  REQUIRE(t.o.choice->used().forward == "WINOGRAD_NONFUSED");
  const auto first = plan_of(t);
  REQUIRE(first);
  CHECK(first->workspace_bytes > 0);

  memory::CachingAllocator& allocator = memory::allocator(gpu());
  allocator.empty_cache();
  allocator.set_limit(allocator.stats().reserved_bytes);
  CHECK_NOTHROW(forward.run());
  allocator.set_limit(std::nullopt);
  const std::vector<float> after = forward.result();
  for (std::size_t i = 0; i < before.size(); ++i) {
    REQUIRE(std::abs(after[i] - before[i]) <= 1e-3f * (1 + std::abs(before[i])));
  }
  const auto second = plan_of(t);
  REQUIRE(second);
  CHECK(second->workspace_bytes < first->workspace_bytes);
  CHECK(second->name == t.o.choice->used().forward);
  forward.run();  // the replacement stays
  CHECK(t.o.choice->used().forward == second->name);
}
