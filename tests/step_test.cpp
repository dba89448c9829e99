#include "train/step.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>

#include "cuttle/autograd.hpp"
#include "cuttle/device.hpp"
#include "cuttle/nn.hpp"
#include "cuttle/ops.hpp"
#include "cuttle/random.hpp"
#include "support/quadrants.hpp"
#include "train/config.hpp"
#include "train/model_file.hpp"

namespace {

using namespace cuttle;
using namespace cuttle::train;
using cuttle::test::quadrants;

TrainConfig config_for(std::int64_t images) {
  TrainConfig config;
  config.batch = 8;
  config.lr = 0.02;
  resolve_for(config, images);
  return config;
}

/// Norms, a sum of two branches and a global average, as in resnets, but small.
struct TwoBranches : nn::Module {
  nn::Conv2d conv1{3, 16, {.kernel = 3, .padding = 1, .bias = false}};
  nn::Conv2d conv2{16, 32, {.kernel = 3, .stride = 2, .padding = 1, .bias = false}};
  nn::Conv2d shortcut{16, 32, {.kernel = 1, .stride = 2, .bias = false}};
  nn::BatchNorm2d bn1{16}, bn2{32};
  nn::Linear fc{32, 10};

  TwoBranches() {
    add("conv1", conv1);
    add("bn1", bn1);
    add("conv2", conv2);
    add("bn2", bn2);
    add("shortcut", shortcut);
    add("fc", fc);
  }
  Tensor forward(const Tensor& x) override {
    Tensor h = relu_(bn1(conv1(x)));
    h = relu_(add_(bn2(conv2(h)), shortcut(h)));
    return fc(flatten(global_avg_pool2d(h)));
  }
};

using Maker = std::function<std::unique_ptr<nn::Module>()>;

/// The state of a model after two steps: the second one starts from momentum that is not zero.
std::vector<std::vector<float>> trained(const Maker& make, const data::ImageSet& set, int threads) {
  set_num_threads(threads);
  manual_seed(5);
  const auto module = make();
  const auto optimizer = make_optimizer(config_for(set.size()), *module);
  const data::Loader loader(set, {.batch = set.size()});
  const Window window{.batches = 1, .images = set.size(), .load = [&](std::int64_t) { return loader.load(0, 0); }};
  for (int i = 0; i < 2; ++i) {
    accumulate_gradients(*module, *optimizer, window, {.clip_grad_norm = 1});
    optimizer->step();
  }
  set_num_threads(0);
  std::vector<std::vector<float>> state;
  for (const nn::NamedTensor& t : module->state()) state.push_back(t.tensor.to_vector<float>());
  return state;
}

}  // namespace

TEST_CASE("accumulated batches of unequal size give the gradient of one large batch") {
  const data::ImageSet set = quadrants(21);
  const TrainConfig config = config_for(21);
  const auto gradient = [&](std::int64_t batch, std::int64_t batches) {
    manual_seed(3);
    const auto module = make_module(spec_for("lenet", set));
    const auto optimizer = make_optimizer(config, *module);
    const data::Loader loader(set, {.batch = batch, .shuffle = true});
    REQUIRE(loader.batches() == batches);
    const StepResult result = accumulate_gradients(
        *module, *optimizer,
        {.batches = batches, .images = 21, .load = [&](std::int64_t b) { return loader.load(0, b); }}, {});
    std::vector<float> values;
    for (const Tensor& p : module->parameters()) {
      for (const float g : p.grad().to_vector<float>()) values.push_back(g);
    }
    return std::pair(result, values);
  };
  const auto [large, expected] = gradient(21, 1);
  const auto [small, actual] = gradient(8, 3);  // 8, 8 and 5
  CHECK(small.loss == doctest::Approx(large.loss).epsilon(1e-6));
  CHECK(small.correct == large.correct);
  CHECK(small.grad_norm.value() == doctest::Approx(large.grad_norm.value()).epsilon(1e-5));
  double largest = 0, difference = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
    difference = std::max(difference, std::abs(static_cast<double>(expected[i]) - actual[i]));
  }
  CHECK(difference < 1e-5 * largest);
}

TEST_CASE("a step that measures no norm takes the same gradients and still finds a loss that is not finite") {
  const data::ImageSet set = quadrants(8);
  const TrainConfig config = config_for(8);
  const data::Loader loader(set, {.batch = 8});
  const Window window{.batches = 1, .images = 8, .load = [&](std::int64_t b) { return loader.load(0, b); }};
  const auto module = make_module(spec_for("lenet", set));
  const auto optimizer = make_optimizer(config, *module);
  const StepResult with = accumulate_gradients(*module, *optimizer, window, {});
  CHECK(with.grad_norm.value() == optim::grad_norm(module->parameters()).item<float>());
  const StepResult without = accumulate_gradients(*module, *optimizer, window, {.measure_grad_norm = false});
  CHECK(!without.grad_norm);
  CHECK(without.loss == with.loss);
  CHECK(without.correct == with.correct);
  CHECK(without.finite());
  const StepResult clipped =
      accumulate_gradients(*module, *optimizer, window, {.clip_grad_norm = 1e-3, .measure_grad_norm = false});
  CHECK(clipped.grad_norm == with.grad_norm);
  CHECK(optim::grad_norm(module->parameters()).item<float>() == doctest::Approx(1e-3));
  {
    const NoGrad no_grad;
    Tensor bias = module->parameters().back();
    bias.fill_(std::numeric_limits<double>::quiet_NaN());
  }
  CHECK(!accumulate_gradients(*module, *optimizer, window, {.measure_grad_norm = false}).finite());
}

TEST_CASE("training gives the same bits with any number of threads") {
  const auto check = [](const Maker& make, const data::ImageSet& set) {
    const auto one = trained(make, set, 1);
    CAPTURE(set.channels);
    CHECK(trained(make, set, 2) == one);
    CHECK(trained(make, set, 3) == one);
  };
  // Small, yet the activations of both models and lenet's largest weight have several times the 16384 elements that a
  // thread must get, and the gradients of all filters and the norms are sums of several parts.
  const data::ImageSet grey = data::synthetic(40, 1, 12, 12, 10), coloured = data::synthetic(12, 3, 20, 20, 10);
  check([&grey] { return make_module(spec_for("lenet", grey)); }, grey);
  check([] { return std::make_unique<TwoBranches>(); }, coloured);
}
