#include "train/step.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "cuttle/autograd.hpp"
#include "cuttle/device.hpp"
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

/// The state of a model after a few steps.
std::vector<std::vector<float>> trained(const std::string& model, const data::ImageSet& set, int threads) {
  set_num_threads(threads);
  manual_seed(5);
  const auto module = make_module(spec_for(model, set));
  const auto optimizer = make_optimizer(config_for(set.size()), *module);
  const data::Loader loader(set, {.batch = set.size()});
  const Window window{.batches = 1, .images = set.size(), .load = [&](std::int64_t) { return loader.load(0, 0); }};
  for (int i = 0; i < 3; ++i) {
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
  const auto check = [](const std::string& model, const data::ImageSet& set) {
    CAPTURE(model);
    const auto one = trained(model, set, 1);
    CHECK(trained(model, set, 2) == one);
    CHECK(trained(model, set, 3) == one);
  };
  check("lenet", data::synthetic(48, 1, 28, 28, 10));
  check("resnet18_cifar", data::synthetic(9, 3, 20, 20, 10));
}
