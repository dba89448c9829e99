#include <doctest/doctest.h>

#include <stdexcept>
#include <thread>

#include "autograd/node.hpp"
#include "cuttle/autograd.hpp"
#include "cuttle/error.hpp"
#include "cuttle/memory.hpp"
#include "cuttle/ops.hpp"
#include "cuttle/optim.hpp"
#include "support/formula.hpp"
#include "support/leaf.hpp"

using namespace cuttle;
using namespace cuttle::testing;

namespace {

/// The identity, whose backward calls `observe` before it hands the gradient on.
Tensor probe(const Tensor& x, std::function<void()> observe) {
  Tensor out = x.detach().clone();
  autograd::record("probe", out, {&x}, [observe = std::move(observe)](Tensor g, autograd::Gradients& in) {
    observe();
    in.give(0, std::move(g));
  });
  return out;
}

std::uint64_t allocated_bytes() { return memory::allocator(kCpu).stats().allocated_bytes; }

}  // namespace

TEST_CASE("gradients of two backward passes add up until they are cleared") {
  Tensor x = leaf({1, 2, 3});
  sum(mul(x, 2)).backward();
  CHECK(grad_of(x) == Floats{2, 2, 2});
  sum(mul(x, 5)).backward();
  CHECK(grad_of(x) == Floats{7, 7, 7});
  x.set_grad({});
  CHECK_FALSE(x.grad().defined());
  sum(x).backward();
  CHECK(grad_of(x) == Floats{1, 1, 1});
}

TEST_CASE("a tensor used twice gets both gradients") {
  Tensor x = leaf({1, -2});
  sum(add(x, x)).backward();
  CHECK(grad_of(x) == Floats{2, 2});

  Tensor y = leaf({1, -2});
  const Tensor shared = mul(y, 3);
  sum(add(mul(shared, 2), add(shared, mul(shared, -1)))).backward();
  CHECK(grad_of(y) == Floats{6, 6});
}

TEST_CASE("the arms of a diamond of unequal length are summed before the gradient goes on") {
  Tensor x = leaf({1, -2, 3});
  int visits = 0;
  const Tensor top = probe(mul(x, 2), [&visits] { ++visits; });
  const Tensor left = relu(top), right = mul(mul(mul(top, 2), 2), 0.5);
  sum(add(left, add(right, top))).backward();
  CHECK(visits == 1);
  CHECK(grad_of(x) == Floats{8, 6, 8});
}

TEST_CASE("a ladder of diamonds takes one visit an op, not one a path") {
  Tensor x = leaf({1});
  Tensor h = x;
  for (int i = 0; i < 60; ++i) h = mul(add(h, h), 0.5);  // 2^60 paths
  sum(h).backward();
  CHECK(grad_of(x) == Floats{1});
}

TEST_CASE("two losses over one trunk may be added, and each leaf hears of both") {
  Tensor x = leaf({2});
  const Tensor trunk = relu(x);
  add(sum(mul(trunk, 3)), sum(mul(trunk, 4))).backward();
  CHECK(grad_of(x) == Floats{7});
}

TEST_CASE("a second backward is an error that names the op and leaves the gradients alone") {
  Tensor x = leaf({1, 2});
  const Tensor loss = sum(relu(x));
  loss.backward();
  CHECK_THROWS_WITH_AS(loss.backward(), doctest::Contains("'sum' a second time"), AutogradError);
  CHECK(grad_of(x) == Floats{1, 1});
}

TEST_CASE("a second loss that reaches a consumed op is an error that names that op") {
  Tensor x = leaf({1, 2});
  const Tensor trunk = relu(x);
  sum(trunk).backward();
  CHECK_THROWS_WITH_AS(sum(mul(trunk, 2)).backward(), doctest::Contains("'relu' a second time"), AutogradError);
  CHECK(grad_of(x) == Floats{1, 1});
}

TEST_CASE("backward of what is no scalar needs the gradient of the root") {
  Tensor x = leaf({1, 2, 3});
  const Tensor y = mul(x, 2);
  CHECK_THROWS_WITH_AS(y.backward(), doctest::Contains("f32[3] cpu is not a scalar"), AutogradError);
  CHECK_THROWS_AS(y.backward(Tensor::ones({2})), ShapeError);
  CHECK_THROWS_AS(y.backward(Tensor::ones({3}, {.dtype = DType::f64})), ShapeError);
  const Tensor direction = Tensor::from(Floats{1, 10, 100}, {3});
  y.backward(direction);
  CHECK(grad_of(x) == Floats{2, 20, 200});
  CHECK(direction.to_vector<float>() == Floats{1, 10, 100});
}

TEST_CASE("backward from a 1x1x1x1 result counts as a scalar") {
  Tensor x = Tensor::ones({1, 1, 2, 2}).requires_grad_();
  global_avg_pool2d(x).backward();
  CHECK(grad_of(x) == Floats{0.25f, 0.25f, 0.25f, 0.25f});
}

TEST_CASE("backward of something without history is an error, of a leaf it is its own gradient") {
  CHECK_THROWS_WITH_AS(sum(Tensor::ones({2})).backward(), doctest::Contains("needs no gradient"), AutogradError);
  Tensor x = Tensor::scalar(3).requires_grad_();
  x.backward();
  x.backward();
  CHECK(x.grad().item<float>() == 2);
}

TEST_CASE("the gradient given to backward is not taken for the leaf's own") {
  Tensor x = leaf({1, 2});
  const Tensor direction = Tensor::ones({2});
  x.backward(direction);
  x.backward(direction);
  CHECK(grad_of(x) == Floats{2, 2});
  CHECK(direction.to_vector<float>() == Floats{1, 1});
}

TEST_CASE("leaves that share a gradient each get their own memory, so that clipping in place scales each once") {
  Tensor a = leaf({3}), b = leaf({4});
  const Tensor y = add(a, b);
  y.backward(Tensor::from(Floats{10}, {1}));
  CHECK(a.grad().raw_data() != b.grad().raw_data());
  const Tensor norm = optim::clip_grad_norm_({a, b}, 1);
  CHECK(norm.item<float>() == doctest::Approx(10 * std::sqrt(2.0)));
  CHECK(grad_of(a)[0] == doctest::Approx(std::sqrt(0.5)));
  CHECK(grad_of(b)[0] == doctest::Approx(std::sqrt(0.5)));
}

TEST_CASE("the gradient of a view of a leaf is no part of larger memory") {
  Tensor x = Tensor::ones({4, 3}).requires_grad_();
  const Tensor rows = x.reshape({12});
  rows.backward(Tensor::ones({12}));
  Tensor g = x.grad();
  g.fill_(9);
  CHECK(x.grad().shape() == Shape{4, 3});
  CHECK(x.to_vector<float>() == Floats(12, 1.0f));
}

TEST_CASE("slices that overlap add their gradients where they do") {
  Tensor x = leaf({1, 2, 3, 4});
  sum(add(x.slice(0, 3), mul(x.slice(1, 4), 10))).backward();
  CHECK(grad_of(x) == Floats{1, 11, 11, 10});
}

TEST_CASE("ops under NoGrad record nothing, and recording comes back with its end") {
  Tensor x = leaf({1, 2});
  {
    const NoGrad outer;
    { const NoGrad inner; }
    CHECK_FALSE(grad_enabled());
    CHECK_FALSE(mul(x, 2).requires_grad());
  }
  CHECK(grad_enabled());
  CHECK(mul(x, 2).requires_grad());
}

TEST_CASE("NoGrad of one thread does not reach another, and an exception ends it") {
  const NoGrad here;
  bool there = false;
  std::thread([&there] { there = grad_enabled(); }).join();
  CHECK(there);
  set_grad_enabled(true);
  CHECK_THROWS([] {
    const NoGrad no_grad;
    throw std::runtime_error("out");
  }());
  CHECK(grad_enabled());
}

TEST_CASE("backward itself records nothing and restores recording, also when it throws") {
  Tensor x = leaf({1});
  sum(probe(x, [] { CHECK_FALSE(grad_enabled()); })).backward();
  CHECK(grad_enabled());
  CHECK_FALSE(x.grad().requires_grad());
  CHECK_THROWS(sum(probe(x, [] { throw std::runtime_error("out"); })).backward());
  CHECK(grad_enabled());
}

TEST_CASE("detach cuts the history and shares the memory") {
  Tensor x = leaf({1, 2});
  const Tensor h = mul(x, 3), cut = h.detach();
  CHECK_FALSE(cut.requires_grad());
  CHECK(cut.is_leaf());
  CHECK(cut.raw_data() == h.raw_data());
  sum(add(h, cut)).backward();
  CHECK(grad_of(x) == Floats{3, 3});
}

TEST_CASE("only leaves of a floating dtype can be asked for a gradient") {
  Tensor x = leaf({1});
  Tensor y = mul(x, 2);
  CHECK_FALSE(y.is_leaf());
  CHECK_THROWS_AS(y.requires_grad_(), AutogradError);
  Tensor whole = Tensor::zeros({2}, {.dtype = DType::i64});
  CHECK_THROWS_AS(whole.requires_grad_(), DtypeError);
  CHECK_NOTHROW(whole.requires_grad_(false));
  CHECK_FALSE(x.to(DType::i32).requires_grad());
}

TEST_CASE("a constant gets no gradient and costs no history") {
  Tensor x = leaf({1, 2});
  const Tensor c = Tensor::ones({2});
  CHECK_FALSE(add(c, c).requires_grad());
  sum(add(x, c)).backward();
  CHECK_FALSE(c.grad().defined());
}

TEST_CASE("a gradient set by hand must fit and is added to in the tensor's own layout") {
  Tensor x = Tensor::ones({1, 2, 2, 2}).requires_grad_();
  CHECK_THROWS_AS(x.set_grad(Tensor::ones({8})), ShapeError);
  CHECK_THROWS_AS(x.set_grad(Tensor::ones({1, 2, 2, 2}, {.dtype = DType::f64})), DtypeError);
  const Floats by_hand{0, 1, 2, 3, 4, 5, 6, 7};
  x.set_grad(Tensor::from(by_hand, {1, 2, 2, 2}, {.layout = Layout::nchw}));
  CHECK(grad_of(x) == by_hand);
  x.backward(Tensor::from(by_hand, {1, 2, 2, 2}));
  CHECK(grad_of(x) == Floats{0, 2, 4, 6, 8, 10, 12, 14});
}

TEST_CASE("graphs of 100,000 ops run and die without deep recursion") {
  Tensor x = leaf({1});
  Tensor h = x;
  for (int i = 0; i < 100'000; ++i) h = mul(h, 1);
  sum(h).backward();
  CHECK(grad_of(x) == Floats{1});
  h = x;
  for (int i = 0; i < 100'000; ++i) h = mul(h, 1);
  h = {};  // never run backward: the whole chain dies here
  CHECK(grad_of(x) == Floats{1});
}

TEST_CASE("saved tensors are freed as backward passes them, not at its end") {
  constexpr int kLayers = 16;
  constexpr std::uint64_t kBytes = std::uint64_t{256} * 1024 * sizeof(float);
  Tensor x = Tensor::ones({256 * 1024}).requires_grad_();
  const std::uint64_t before = allocated_bytes();
  std::vector<std::uint64_t> seen;
  const auto look = [&seen] { seen.push_back(allocated_bytes()); };
  Tensor h = probe(x, look);
  for (int i = 0; i < kLayers; ++i) h = relu(h);
  Tensor loss = sum(probe(h, look));
  h = {};
  CHECK(allocated_bytes() >= before + kLayers * kBytes);
  loss.backward();
  REQUIRE(seen.size() == 2);
  // At the end of the graph all layers' outputs are alive, at its beginning none: only the gradient that travels.
  CHECK(seen[0] >= before + kLayers * kBytes);
  CHECK(seen[1] <= before + 3 * kBytes);
  loss = {};
  CHECK(allocated_bytes() <= before + 2 * kBytes);
  x.set_grad({});
  CHECK(allocated_bytes() == before);
}

TEST_CASE("a frozen layer keeps no activations") {
  const Tensor weight = Tensor::ones({64, 64, 1, 1});
  const Tensor x = Tensor::ones({8, 64, 16, 16}).requires_grad_();
  const std::uint64_t bytes = x.nbytes(), before = allocated_bytes();
  Tensor h = conv2d(x, weight);
  for (int i = 0; i < 7; ++i) h = conv2d(h, weight);
  CHECK(allocated_bytes() <= before + 2 * bytes);
}

TEST_CASE("max_pool2d keeps the places of its winners only where a gradient will ask for them") {
  const Tensor x = formula_tensor({2, 3, 8, 8}, {.seed = 4}), wanted = x.clone().requires_grad_();
  const auto allocations_of = [](const Tensor& input) {
    const std::uint64_t before = memory::allocator(kCpu).stats().allocations;
    const Tensor y = max_pool2d(input, {.kernel = 2});
    return memory::allocator(kCpu).stats().allocations - before;
  };
  CHECK(allocations_of(x) == 1);
  CHECK(allocations_of(wanted) == 2);
  {
    const NoGrad no_grad;
    CHECK(allocations_of(wanted) == 1);
  }
  CHECK(max_pool2d(x, {.kernel = 2}).to_vector<float>() == max_pool2d(wanted, {.kernel = 2}).to_vector<float>());
}

TEST_CASE("a graph that is dropped without backward gives its memory back") {
  Tensor x = Tensor::ones({1000}).requires_grad_();
  const std::uint64_t before = allocated_bytes();
  {
    const Tensor y = relu(add(relu(x), x));
    CHECK(allocated_bytes() > before);
  }
  CHECK(allocated_bytes() == before);
}

TEST_CASE("an exception inside backward leaves nothing half-summed behind") {
  Tensor x = leaf({1, 2});
  bool fail = true;
  {
    const Tensor h = mul(x, 2);
    // The failing op runs when `h` has already received the other arm's gradient.
    const Tensor failing = probe(h, [&fail] {
      if (fail) throw std::runtime_error("no room");
    });
    const Tensor loss = sum(add(failing, relu(h)));
    CHECK_THROWS_WITH(loss.backward(), "no room");
    CHECK_FALSE(x.grad().defined());
    CHECK_THROWS_WITH_AS(loss.backward(), doctest::Contains("second time"), AutogradError);
    // What the failed pass did not reach can still be differentiated, without what the failed pass had delivered.
    sum(h).backward();
    CHECK(grad_of(x) == Floats{2, 2});
  }
  x.set_grad({});
  fail = false;
  const Tensor h = mul(x, 2);
  sum(add(probe(h, [] {}), relu(h))).backward();
  CHECK(grad_of(x) == Floats{4, 4});
}

TEST_CASE("out of memory in backward is reported and the next step works") {
  memory::CachingAllocator& allocator = memory::allocator(kCpu);
  // 32 MiB: too large to find room in a segment that something else keeps.
  Tensor x = Tensor::ones({8 << 20}).requires_grad_();
  const Tensor loss = sum(relu(x));
  allocator.empty_cache();
  allocator.set_limit(allocator.stats().reserved_bytes);
  CHECK_THROWS_AS(loss.backward(), OutOfMemoryError);
  allocator.set_limit(std::nullopt);
  CHECK_FALSE(x.grad().defined());
  sum(relu(x)).backward();
  CHECK(sum(x.grad()).item<double>() == 8 << 20);
}

TEST_CASE("labels and statistics changed after the forward pass are caught too") {
  Tensor logits = formula_tensor({3, 4}, {.seed = 1}).requires_grad_();
  Tensor targets = formula_targets(3, 4, 2);
  const Tensor loss = cross_entropy(logits, targets);
  targets.fill_(0);
  CHECK_THROWS_WITH_AS(loss.backward(), doctest::Contains("'fill_' changed it"), AutogradError);

  Tensor x = formula_tensor({2, 3, 2, 2}, {.seed = 3}).requires_grad_();
  Tensor mean = Tensor::zeros({3}), var = Tensor::ones({3});
  const Tensor y = sum(batch_norm2d(x, {}, {}, mean, var, {.training = false}));
  batch_norm2d(x, {}, {}, mean, var);
  CHECK_THROWS_WITH_AS(y.backward(), doctest::Contains("'batch_norm2d' changed it"), AutogradError);
}

TEST_CASE("gradients follow a leaf whose layout changed between forward and backward") {
  const auto gradient = [](bool change) {
    Tensor w = Tensor::from(std::vector<float>{1, 2, 3, 4, 5, 6, 7, 8}, {1, 2, 2, 2}).requires_grad_();
    const Tensor x = Tensor::from(std::vector<float>{1, 0, 2, -1, 3, 1, 0, 5}, {1, 2, 2, 2});
    const Tensor first = sum(conv2d(x, w));
    if (change) w.set_data(w.detach().to(Layout::nchw));
    first.backward();
    sum(conv2d(x, w)).backward();
    return w.grad().to_vector<float>();
  };
  CHECK(gradient(true) == gradient(false));
}

TEST_CASE("a leaf that changed its dtype between forward and backward is an error") {
  Tensor w = Tensor::ones({2}).requires_grad_();
  const Tensor loss = sum(mul(w, 2));
  w.set_data(w.detach().to(DType::f64));
  CHECK_THROWS_AS(loss.backward(), AutogradError);
}
