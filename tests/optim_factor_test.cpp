#include <doctest/doctest.h>

#include <limits>

#include "autograd/copy.hpp"
#include "core/tensor_impl.hpp"
#include "cuttle/autograd.hpp"
#include "cuttle/error.hpp"
#include "cuttle/optim.hpp"

using namespace cuttle;

namespace {

using Floats = std::vector<float>;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor parameter(const Floats& values) {
  return Tensor::from(values, {static_cast<std::int64_t>(values.size())}).requires_grad_();
}

Floats of(const Tensor& t) { return t.to_vector<float>(); }

const Tensor& state_named(const std::vector<nn::NamedTensor>& state, const std::string& name) {
  for (const nn::NamedTensor& t : state) {
    if (t.name == name) return t.tensor;
  }
  throw Error("no state " + name);
}

}  // namespace

TEST_CASE("step(factor) is a step with gradients times the factor") {
  Tensor p = parameter({1, -2, 3}), q = parameter({1, -2, 3});
  optim::AdamW scaled({p}, {.lr = 0.1}), plain({q}, {.lr = 0.1});
  for (int t = 1; t <= 3; ++t) {
    const float g = static_cast<float>(t);
    p.set_grad(Tensor::from(Floats{4 * g, 8, -4 * g}, {3}));
    q.set_grad(Tensor::from(Floats{g, 2, -g}, {3}));
    scaled.step(Tensor::scalar(0.25));
    plain.step();
    CHECK(of(p) == of(q));
  }
}

TEST_CASE("a step whose factor is not finite changes neither parameters nor state, and the next is like the first") {
  for (const double bad : {kInfinity, std::numeric_limits<double>::quiet_NaN()}) {
    Tensor p = parameter({1, 2}), q = parameter({1, 2});
    optim::SGD skips({p}, {.lr = 0.5, .momentum = 0.9, .dampening = 0.5}),
        plain({q}, {.lr = 0.5, .momentum = 0.9, .dampening = 0.5});
    p.set_grad(Tensor::ones({2}));
    q.set_grad(Tensor::ones({2}));
    skips.step(Tensor::scalar(bad));
    CHECK(of(p) == Floats{1, 2});
    // A state saved now can be loaded: it holds no momentum yet.
    const auto state = skips.state();
    CHECK(state.size() == 2);
    CHECK(state_named(state, "updates").to_vector<std::int64_t>() == std::vector<std::int64_t>{0});
    optim::SGD resumed({parameter({1, 2})}, {.lr = 0.5, .momentum = 0.9});
    CHECK_NOTHROW(resumed.load_state(state));

    for (int t = 0; t < 2; ++t) {
      skips.step(Tensor::scalar(1));
      skips.step(Tensor::scalar(bad));
      plain.step();
      CHECK(of(p) == of(q));
    }
    CHECK(skips.steps() == 5);
    CHECK(state_named(skips.state(), "updates").to_vector<std::int64_t>() == std::vector<std::int64_t>{2});
    CHECK(of(state_named(skips.state(), "momentum.0")) == of(state_named(plain.state(), "momentum.0")));
  }
}

TEST_CASE("a factor of another dtype or rank is an error before any change") {
  Tensor p = parameter({1});
  p.set_grad(Tensor::ones({1}));
  optim::SGD sgd({p}, {.lr = 1});
  CHECK_THROWS_AS(sgd.step(Tensor::scalar(1, {.dtype = DType::f64})), DtypeError);
  CHECK_THROWS_WITH_AS(sgd.step(Tensor::ones({1})), doctest::Contains("f32[1]"), DtypeError);
  CHECK(of(p) == Floats{1});
  CHECK(sgd.steps() == 0);
}

TEST_CASE("the optimizer reads 16-bit gradients and keeps a parameter's copy equal") {
  Tensor p = parameter({1, 2});
  p.impl()->grad = Tensor::from(Floats{2, -4}, {2}).to(DType::f16);
  p.impl()->copy = p.detach().to(DType::bf16).clone();
  autograd::copy_rewritten(p);
  const Tensor copy = autograd::current_copy(p);
  REQUIRE(copy.defined());

  optim::SGD sgd({p}, {.lr = 0.25});
  const std::uint32_t before = copy.version();
  sgd.step();
  CHECK(of(p) == Floats{0.5, 3});
  CHECK(of(copy) == Floats{0.5, 3});
  CHECK(copy.version() > before);
  CHECK(autograd::current_copy(p).impl() == copy.impl());
  sgd.step(Tensor::scalar(kInfinity));
  CHECK(of(autograd::current_copy(p)) == Floats{0.5, 3});

  // Another change outdates the copy: it is neither used nor written.
  {
    const NoGrad no_grad;
    p.fill_(7);
  }
  CHECK_FALSE(autograd::current_copy(p).defined());
  sgd.step();
  CHECK(of(p) == Floats{6.5, 8});
  CHECK(of(copy) == Floats{0.5, 3});
  CHECK_FALSE(autograd::current_copy(p).defined());
}

TEST_CASE("a parameter that is given other data loses its copy") {
  Tensor p = parameter({1, 2});
  p.impl()->copy = p.detach().to(DType::f16);
  autograd::copy_rewritten(p);
  REQUIRE(autograd::current_copy(p).defined());
  p.set_data(Tensor::zeros({2}));
  CHECK_FALSE(autograd::current_copy(p).defined());
}
