#include "cuttle/optim.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <numbers>

#include "cuttle/autograd.hpp"
#include "cuttle/error.hpp"

namespace ct = cuttle;
namespace optim = cuttle::optim;
using ct::Tensor;
using doctest::Approx;

namespace {

using Row = std::vector<double>;

Tensor parameter(const std::vector<float>& values, const ct::Shape& shape) {
  return Tensor::from(values, shape).requires_grad_();
}

Tensor vector_parameter(const std::vector<float>& values) {
  return parameter(values, {static_cast<std::int64_t>(values.size())});
}

void give_grad(Tensor p, const Row& values) {
  const std::vector<float> f(values.begin(), values.end());
  p.set_grad(Tensor::from(f, p.shape()).to(p.dtype()));
}

void check_close(const Tensor& t, const Row& expected) {
  const Row got = t.to_vector<double>();
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(expected[i]).epsilon(1e-5));
}

/// Gradient of step t (from 1) for element i: arbitrary, of both signs.
double gradient_at(int t, std::size_t i) { return std::sin(1.7 * t + 2.3 * static_cast<double>(i)); }

/// The formulas of torch.optim.SGD for one element.
struct SgdElement {
  double value, buffer = 0;
  int updates = 0;
  void step(double grad, const optim::SGDOptions& o, double decay) {
    const double g = grad + decay * value;
    double d = g;
    if (o.momentum != 0) {
      buffer = ++updates == 1 ? g : o.momentum * buffer + (1 - o.dampening) * g;
      d = o.nesterov ? g + o.momentum * buffer : buffer;
    }
    value -= o.lr * d;
  }
};

/// The formulas of torch.optim.AdamW for one element.
struct AdamWElement {
  double value, mean = 0, square = 0;
  int updates = 0;
  void step(double grad, const optim::AdamWOptions& o, double decay) {
    ++updates;
    value *= 1 - o.lr * decay;
    mean = o.beta1 * mean + (1 - o.beta1) * grad;
    square = o.beta2 * square + (1 - o.beta2) * grad * grad;
    const double root = std::sqrt(square / (1 - std::pow(o.beta2, updates))) + o.eps;
    value -= o.lr * (mean / (1 - std::pow(o.beta1, updates))) / root;
  }
};

/// Ten steps of a matrix and a vector (which may be spared from decay) beside the formulas.
template <class Optimizer, class Element, class Options> void check_against_formula(const Options& options) {
  const std::vector<float> start{0.5f, -1.5f, 2.0f, 0.25f};
  const Tensor matrix = parameter(start, {2, 2}), vector = vector_parameter(start);
  Optimizer optimizer({matrix, vector}, options);
  std::vector<Element> matrix_elements, vector_elements;
  for (const float value : start) {
    matrix_elements.push_back({value});
    vector_elements.push_back({value});
  }
  for (int t = 1; t <= 10; ++t) {
    Row grads, expected_matrix, expected_vector;
    for (std::size_t i = 0; i < start.size(); ++i) grads.push_back(static_cast<float>(gradient_at(t, i)));
    give_grad(matrix, grads);
    give_grad(vector, grads);
    optimizer.step();
    for (std::size_t i = 0; i < start.size(); ++i) {
      matrix_elements[i].step(grads[i], options, options.weight_decay);
      vector_elements[i].step(grads[i], options, options.decay_norm_and_bias ? options.weight_decay : 0);
      expected_matrix.push_back(matrix_elements[i].value);
      expected_vector.push_back(vector_elements[i].value);
    }
    CAPTURE(t);
    check_close(matrix, expected_matrix);
    check_close(vector, expected_vector);
  }
  CHECK(optimizer.steps() == 10);
}

template <class F> void check_usage_error(const F& f, const std::string& part) {
  CAPTURE(part);
  try {
    f();
    FAIL_CHECK("no error");
  } catch (const ct::UsageError& error) {
    CAPTURE(error.what());
    CHECK(error.cause().find(part) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("SGD follows its formulas over ten steps in every combination of options") {
  const auto check = check_against_formula<optim::SGD, SgdElement, optim::SGDOptions>;
  check({.lr = 0.1});
  check({.lr = 0.1, .weight_decay = 0.01});
  check({.lr = 0.1, .momentum = 0.9});
  check({.lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.01});
  check({.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true});
  check({.lr = 0.1, .momentum = 0.9, .weight_decay = 0.5, .decay_norm_and_bias = false});
}

TEST_CASE("AdamW follows its formulas over ten steps in every combination of options") {
  const auto check = check_against_formula<optim::AdamW, AdamWElement, optim::AdamWOptions>;
  check({.lr = 0.01});
  check({.lr = 0.01, .weight_decay = 0});
  check({.lr = 0.01, .beta1 = 0, .beta2 = 0.5, .eps = 1e-3});
  check({.lr = 0.01, .weight_decay = 0.5, .decay_norm_and_bias = false});
}

TEST_CASE("a parameter without a gradient is left alone and its first update is its own step 1") {
  const optim::SGDOptions sgd_options{.lr = 0.1, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.1};
  const optim::AdamWOptions adamw_options{.lr = 0.1, .weight_decay = 0.1};
  const Tensor sgd_always = vector_parameter({1}), sgd_late = vector_parameter({1}), frozen = vector_parameter({1});
  const Tensor adamw_always = vector_parameter({1}), adamw_late = vector_parameter({1});
  optim::SGD sgd({sgd_late, sgd_always, frozen}, sgd_options);
  optim::AdamW adamw({adamw_always, adamw_late}, adamw_options);
  SgdElement expected_sgd_always{1}, expected_sgd_late{1};
  AdamWElement expected_adamw_always{1}, expected_adamw_late{1};
  for (int t = 1; t <= 8; ++t) {
    const double g = static_cast<float>(gradient_at(t, 0));
    give_grad(sgd_always, {g});
    give_grad(adamw_always, {g});
    expected_sgd_always.step(g, sgd_options, 0.1);
    expected_adamw_always.step(g, adamw_options, 0.1);
    if (t == 3 || t == 4 || t > 6) {
      give_grad(sgd_late, {g});
      give_grad(adamw_late, {g});
      expected_sgd_late.step(g, sgd_options, 0.1);
      expected_adamw_late.step(g, adamw_options, 0.1);
    }
    sgd.step();
    adamw.step();
    sgd.zero_grad();
    adamw.zero_grad();
    CAPTURE(t);
    check_close(sgd_always, {expected_sgd_always.value});
    check_close(sgd_late, {expected_sgd_late.value});
    check_close(adamw_always, {expected_adamw_always.value});
    check_close(adamw_late, {expected_adamw_late.value});
  }
  CHECK(frozen.item<float>() == 1);
  CHECK(frozen.version() == 0);
  for (const auto& t : sgd.state()) {
    CHECK(t.name != "momentum.2");
    if (t.name == "updates") CHECK(t.tensor.to_vector<std::int64_t>() == std::vector<std::int64_t>{4, 8, 0});
    if (t.name == "step") CHECK(t.tensor.item<std::int64_t>() == 8);
  }
}

TEST_CASE("an optimizer resumed from its saved state continues bit by bit, also where parameters joined late") {
  const auto run = [](auto make, auto steps_of) {
    const Tensor a = parameter({0.5f, -1, 2, 3}, {2, 2}), b = vector_parameter({1, 2});
    auto first = make({a, b});
    steps_of(*first, a, b, 1, 5);
    std::vector<ct::nn::NamedTensor> saved = first->state();

    const Tensor c = Tensor(a.detach().clone()).requires_grad_(), d = Tensor(b.detach().clone()).requires_grad_();
    steps_of(*first, a, b, 6, 9);  // must not change what was saved
    auto second = make({c, d});
    second->load_state(saved);
    CHECK(second->steps() == 5);
    steps_of(*second, c, d, 6, 9);
    CHECK(a.to_vector<float>() == c.to_vector<float>());
    CHECK(b.to_vector<float>() == d.to_vector<float>());
    CHECK(second->steps() == 9);
  };
  const auto steps_of = [](optim::Optimizer& optimizer, const Tensor& a, const Tensor& b, int from, int to) {
    for (int t = from; t <= to; ++t) {
      optimizer.set_lr(0.1 / t);
      give_grad(a, {gradient_at(t, 0), gradient_at(t, 1), gradient_at(t, 2), gradient_at(t, 3)});
      if (t % 2 == 0) give_grad(b, {gradient_at(t, 4), gradient_at(t, 5)});
      optimizer.step();
      optimizer.zero_grad();
    }
  };
  using Params = std::vector<Tensor>;
  run(
      [](const Params& p) {
        return std::make_unique<optim::SGD>(p, optim::SGDOptions{.momentum = 0.9, .dampening = 0.2});
      },
      steps_of);
  run([](const Params& p) { return std::make_unique<optim::AdamW>(p, optim::AdamWOptions{}); }, steps_of);
  run([](const Params& p) { return std::make_unique<optim::SGD>(p, optim::SGDOptions{}); }, steps_of);
}

TEST_CASE("an optimizer refuses a state that does not fit, names what is wrong and keeps its own") {
  const Tensor a = vector_parameter({1, 2}), b = vector_parameter({3});
  optim::SGD sgd({a, b}, {.lr = 0.1, .momentum = 0.9});
  give_grad(a, {1, 1});
  sgd.step();
  const auto good = sgd.state();
  REQUIRE(good.size() == 3);
  CHECK(good[2].name == "momentum.0");

  const auto check_refused = [&](std::vector<ct::nn::NamedTensor> state, const std::string& part) {
    CAPTURE(part);
    try {
      sgd.load_state(state);
      FAIL_CHECK("no error");
    } catch (const ct::CheckpointError& error) {
      CAPTURE(error.what());
      CHECK(error.cause().find(part) != std::string::npos);
    }
    CHECK(sgd.steps() == 1);
    CHECK(sgd.state()[2].tensor.to_vector<float>() == good[2].tensor.to_vector<float>());
  };
  auto state = good;
  state[2].name = "exp_avg.0";
  check_refused(state, "missing momentum.0; unexpected exp_avg.0");
  state = good;
  state[2].tensor = Tensor::zeros({3});
  check_refused(state, "momentum.0 is [3] instead of [2]");
  state = good;
  state[1].tensor = Tensor::from<std::int64_t>({1}, {1});
  check_refused(state, "updates is [1] instead of [2]");
  state = good;
  state[1].tensor = Tensor::from<std::int64_t>({5, 0}, {2});
  check_refused(state, "updates[0] = 5");
  state = good;
  state[1].tensor = Tensor::from<std::int64_t>({1, -1}, {2});
  check_refused(state, "updates[1] = -1");
  check_refused({}, "missing step, updates");
}

TEST_CASE("a new learning rate counts from the next step on") {
  const Tensor p = vector_parameter({1});
  optim::SGD sgd({p}, {.lr = 0.5});
  sgd.set_lr(0.25);
  CHECK(sgd.lr() == 0.25);
  give_grad(p, {1});
  sgd.step();
  CHECK(p.item<float>() == 0.75f);
  check_usage_error([&] { sgd.set_lr(-1); }, "lr = -1");
  check_usage_error([&] { sgd.set_lr(std::nan("")); }, "lr = nan");
  CHECK(sgd.lr() == 0.25);
}

TEST_CASE("state follows parameters that change layout or dtype between steps") {
  const std::vector<float> start{1, 2, 3, 4, 5, 6, 7, 8};
  const Row grads{1, -1, 2, -2, 3, -3, 4, -4};
  const optim::SGDOptions options{.lr = 0.1, .momentum = 0.9};
  Tensor moved = parameter(start, {1, 2, 2, 2}), still = parameter(start, {1, 2, 2, 2});
  optim::SGD moved_sgd({moved}, options), still_sgd({still}, options);
  const auto step = [&] {
    give_grad(moved, grads);
    give_grad(still, grads);
    moved_sgd.step();
    still_sgd.step();
    CHECK(moved.to_vector<float>() == still.to_vector<float>());
  };
  step();
  {
    const ct::NoGrad no_grad;
    moved.set_data(moved.to(ct::Layout::nchw));
  }
  step();
  step();
  {
    const ct::NoGrad no_grad;
    moved.set_data(moved.to(ct::DType::f64));
    still.set_data(still.to(ct::DType::f64));
  }
  step();
  CHECK(moved_sgd.state().back().tensor.dtype() == ct::DType::f64);
}

TEST_CASE("a backward that needs the weights from before a step is an error that names the optimizer") {
  ct::nn::Linear linear(2, 2);
  Tensor x = Tensor::ones({1, 2}).requires_grad_();
  const Tensor stale = ct::sum(linear(x));
  ct::sum(linear(x)).backward();
  optim::SGD sgd(linear.parameters(), {.lr = 0.1});
  sgd.step();
  try {
    stale.backward();
    FAIL("no error");
  } catch (const ct::AutogradError& error) {
    CHECK(error.cause().find("'SGD'") != std::string::npos);
    CHECK(error.cause().find("'linear'") != std::string::npos);
  }
  CHECK(linear.weight.requires_grad());
  CHECK(linear.weight.is_leaf());
}

TEST_CASE("impossible optimizer options are refused with their value") {
  const std::vector<Tensor> p{vector_parameter({1})};
  check_usage_error([&] { optim::SGD(p, {.lr = -0.1}); }, "lr = -0.1");
  check_usage_error([&] { optim::SGD(p, {.lr = std::nan("")}); }, "lr = nan");
  check_usage_error([&] { optim::SGD(p, {.lr = std::numeric_limits<double>::infinity()}); }, "lr = inf");
  check_usage_error([&] { optim::SGD(p, {.momentum = 1}); }, "momentum = 1");
  check_usage_error([&] { optim::SGD(p, {.momentum = -0.5}); }, "momentum = -0.5");
  check_usage_error([&] { optim::SGD(p, {.momentum = 0.9, .dampening = 2}); }, "dampening = 2");
  check_usage_error([&] { optim::SGD(p, {.weight_decay = -1e-4}); }, "weight_decay = -0.0001");
  check_usage_error([&] { optim::SGD(p, {.nesterov = true}); }, "momentum = 0");
  check_usage_error([&] { optim::SGD(p, {.momentum = 0.9, .dampening = 0.1, .nesterov = true}); }, "dampening = 0.1");
  check_usage_error([&] { optim::AdamW(p, {.beta1 = 1}); }, "beta1 = 1");
  check_usage_error([&] { optim::AdamW(p, {.beta2 = -0.1}); }, "beta2 = -0.1");
  check_usage_error([&] { optim::AdamW(p, {.eps = -1}); }, "eps = -1");
  check_usage_error([&] { optim::AdamW(p, {.weight_decay = std::nan("")}); }, "weight_decay = nan");
  check_usage_error([&] { optim::SGD({}, {}); }, "no parameters");
  check_usage_error([&] { optim::SGD({p[0], p[0]}, {}); }, "listed twice");
  check_usage_error([&] { optim::SGD({p[0], Tensor()}, {}); }, "parameter 1 is an undefined");
  check_usage_error([&] { optim::SGD({ct::mul(p[0], 2)}, {}); }, "not a leaf");
}

TEST_CASE("clipping scales all gradients by their common norm, and only down") {
  const Tensor a = vector_parameter({0, 0}), b = vector_parameter({0}), none = vector_parameter({0});
  give_grad(a, {3, 0});
  give_grad(b, {-4});
  const std::uint32_t version = a.grad().version();
  CHECK(optim::clip_grad_norm_({a, none, b}, 2.5).item<float>() == Approx(5));
  check_close(a.grad(), {1.5, 0});
  check_close(b.grad(), {-2});
  CHECK(a.grad().version() > version);

  CHECK(optim::clip_grad_norm_({a, b}, 10).item<float>() == Approx(2.5));
  check_close(a.grad(), {1.5, 0});
  CHECK(optim::clip_grad_norm_({none}, 1).item<float>() == 0);
  check_usage_error([&] { optim::clip_grad_norm_({a}, -1); }, "max_norm = -1");
  check_usage_error([&] { optim::clip_grad_norm_({a}, std::nan("")); }, "max_norm = nan");
}

TEST_CASE("schedules: constant and stairs") {
  const optim::Schedule constant = optim::Schedule::constant(0.3), stairs = optim::Schedule::step(0.8, 3, 0.5);
  CHECK(constant(0) == 0.3);
  CHECK(constant(1'000'000) == 0.3);
  const Row expected{0.8, 0.8, 0.8, 0.4, 0.4, 0.4, 0.2};
  for (std::size_t t = 0; t < expected.size(); ++t) CHECK(stairs(static_cast<std::int64_t>(t)) == Approx(expected[t]));
}

TEST_CASE("schedules: half a cosine down to the lowest rate, which stays") {
  const optim::Schedule cosine = optim::Schedule::cosine(1, 6, 0.2);
  // 0.2 + 0.8 * (1 + cos(pi t/6)) / 2, whose cosines are 1, sqrt(3)/2, 1/2, 0 and so on.
  const double r = std::numbers::sqrt3 / 2;
  const Row expected{1, 0.6 + 0.4 * r, 0.8, 0.6, 0.4, 0.6 - 0.4 * r, 0.2, 0.2};
  for (std::size_t t = 0; t < expected.size(); ++t) CHECK(cosine(static_cast<std::int64_t>(t)) == Approx(expected[t]));
  CHECK(cosine(100) == Approx(0.2));
}

TEST_CASE("schedules: one cycle rises to its peak and falls to its end") {
  // PyTorch's phases for 11 steps and a rise of 6/11: the peak is step 5, the end step 10.
  const optim::Schedule cycle = optim::Schedule::one_cycle(1, 11, 6.0 / 11, 4, 5);
  CHECK(cycle(0) == Approx(0.25));
  CHECK(cycle(5) == Approx(1));
  CHECK(cycle(10) == Approx(0.05));
  CHECK(cycle(11) == Approx(0.05));
  CHECK(cycle(1) == Approx(1 + (0.25 - 1) * (1 + std::cos(std::numbers::pi / 5)) / 2));
  CHECK(cycle(9) == Approx(0.05 + (1 - 0.05) * (1 + std::cos(std::numbers::pi * 4 / 5)) / 2));
  // torch.optim.lr_scheduler.OneCycleLR(max_lr=0.4, total_steps=7): the peak lies between steps 1 and 2.
  const optim::Schedule uneven = optim::Schedule::one_cycle(0.4, 7);
  const Row expected{0.016, 0.392222650934, 0.367617750508, 0.269073534592, 0.143095510296, 0.0397187167573, 1.6e-06};
  for (std::size_t t = 0; t < expected.size(); ++t) CHECK(uneven(static_cast<std::int64_t>(t)) == Approx(expected[t]));
  CHECK(optim::Schedule::one_cycle(1, 10, 0.1)(0) == 1);  // a rise of one step is already the peak
  CHECK(optim::Schedule::one_cycle(1, 1)(0) == Approx(1 / 25.0 / 1e4));
}

TEST_CASE("schedules: warm-up rises to the first rate of the rest and shifts it") {
  const optim::Schedule warm = optim::Schedule::step(0.4, 2, 0.5).with_warmup(4, 0.5);
  const Row expected{0.2, 0.25, 0.3, 0.35, 0.4, 0.4, 0.2, 0.2, 0.1};
  for (std::size_t t = 0; t < expected.size(); ++t) CHECK(warm(static_cast<std::int64_t>(t)) == Approx(expected[t]));
  CHECK(optim::Schedule::constant(0.4).with_warmup(0)(0) == 0.4);
}

TEST_CASE("impossible schedules are refused with their value") {
  using optim::Schedule;
  check_usage_error([] { Schedule::constant(-1); }, "lr = -1");
  check_usage_error([] { Schedule::step(0.1, 0); }, "period = 0");
  check_usage_error([] { Schedule::step(0.1, 5, -0.5); }, "gamma = -0.5");
  check_usage_error([] { Schedule::cosine(0.1, 0); }, "steps = 0");
  check_usage_error([] { Schedule::cosine(0.1, 10, std::nan("")); }, "min_lr = nan");
  check_usage_error([] { Schedule::one_cycle(0.1, -3); }, "steps = -3");
  check_usage_error([] { Schedule::one_cycle(0.1, 10, 1.5); }, "rise = 1.5");
  check_usage_error([] { Schedule::one_cycle(0.1, 10, 0.3, 0); }, "div = 0");
  check_usage_error([] { Schedule::one_cycle(0.1, 10, 0.3, 25, 0); }, "final_div = 0");
  check_usage_error([] { Schedule::constant(0.1).with_warmup(-1); }, "steps = -1");
  check_usage_error([] { Schedule::constant(0.1).with_warmup(5, 2); }, "start_factor = 2");
  check_usage_error([] { Schedule::constant(0.1).with_warmup(5).with_warmup(3); }, "one warm-up");
  check_usage_error([] { Schedule::constant(0.1)(-1); }, "step = -1");
}
