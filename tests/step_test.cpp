#include "train/stepper.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <tuple>

#include "cuttle/autograd.hpp"
#include "cuttle/device.hpp"
#include "cuttle/nn.hpp"
#include "cuttle/ops.hpp"
#include "cuttle/optim.hpp"
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

/// Runs one step and waits for its result.
StepResult one_step(Stepper& stepper, const Window& window, double lr) {
  stepper.step(window, lr);
  return stepper.next(true).value();
}

std::vector<float> flat_parameters(const nn::Module& module) {
  std::vector<float> all;
  for (const Tensor& p : module.parameters()) {
    for (const float v : p.to_vector<float>()) all.push_back(v);
  }
  return all;
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
  const Window window{.batches = 1, .images = set.size(), .load = [&](std::int64_t, const data::Batch& into) {
                        return loader.load(0, 0, into);
                      }};
  Stepper stepper(*module, *optimizer, {.clip_grad_norm = 1});
  for (int i = 0; i < 2; ++i) stepper.step(window, 0.02);
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
    Stepper stepper(*module, *optimizer, {.most_batches = batches});
    const StepResult result =
        one_step(stepper,
                 {.batches = batches,
                  .images = 21,
                  .load = [&](std::int64_t b, const data::Batch& into) { return loader.load(0, b, into); }},
                 0.02);
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
  CHECK(small.grad_norm == doctest::Approx(large.grad_norm).epsilon(1e-5));
  double largest = 0, difference = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
    difference = std::max(difference, std::abs(static_cast<double>(expected[i]) - actual[i]));
  }
  CHECK(difference < 1e-5 * largest);
}

TEST_CASE("clipping scales the update and leaves the gradients and the norm as they were") {
  const data::ImageSet set = quadrants(8);
  const data::Loader loader(set, {.batch = 8});
  const Window window{.batches = 1, .images = 8, .load = [&](std::int64_t b, const data::Batch& into) {
                        return loader.load(0, b, into);
                      }};
  const auto change = [&](double clip) {
    manual_seed(4);
    const auto module = make_module(spec_for("lenet", set));
    optim::SGD sgd(module->parameters(), {});
    const std::vector<float> before = flat_parameters(*module);
    Stepper stepper(*module, sgd, {.clip_grad_norm = clip});
    const StepResult result = one_step(stepper, window, 1);
    CHECK(result.grad_norm == doctest::Approx(optim::grad_norm(module->parameters()).item<float>()));
    CHECK(result.finite());
    double squares = 0;
    const std::vector<float> after = flat_parameters(*module);
    for (std::size_t i = 0; i < after.size(); ++i) squares += std::pow(double{after[i]} - before[i], 2);
    return std::pair(std::sqrt(squares), result.grad_norm);
  };
  const auto [whole, norm] = change(0);
  CHECK(whole == doctest::Approx(norm).epsilon(1e-4));
  CHECK(change(norm / 10).first == doctest::Approx(norm / 10).epsilon(1e-3));
  CHECK(change(norm * 10).first == doctest::Approx(norm).epsilon(1e-4));
}

TEST_CASE("after a gradient that is not finite no step changes the weights any more") {
  const data::ImageSet set = quadrants(16);
  const data::Loader loader(set, {.batch = 8});
  const auto module = make_module(spec_for("lenet", set));
  const auto optimizer = make_optimizer(config_for(16), *module);
  Stepper stepper(*module, *optimizer, {});
  const auto window = [&](double poison) {
    return Window{.batches = 1, .images = 8, .load = [&loader, poison](std::int64_t, const data::Batch&) {
                    data::Batch batch = loader.load(0, 0);
                    if (poison != 0) batch.images = mul(batch.images, poison);
                    return batch;
                  }};
  };
  CHECK(one_step(stepper, window(0), 0.01).finite());
  const std::vector<float> good = flat_parameters(*module);
  const StepResult bad = one_step(stepper, window(std::numeric_limits<double>::infinity()), 0.01);
  CHECK(bad.skipped());
  const StepResult after = one_step(stepper, window(0), 0.01);
  CHECK(std::isfinite(after.loss));
  CHECK(after.skipped());
  CHECK(flat_parameters(*module) == good);
}

TEST_CASE("a scaled loss gives the same step, and overflow leaves steps out and halves the scale") {
  const data::ImageSet set = quadrants(8);
  const data::Loader loader(set, {.batch = 8});
  const Window window{.batches = 1, .images = 8, .load = [&](std::int64_t b, const data::Batch& into) {
                        return loader.load(0, b, into);
                      }};
  const auto run = [&](bool scaled, float scale) {
    manual_seed(4);
    const auto module = make_module(spec_for("lenet", set));
    optim::SGD sgd(module->parameters(), {});
    Stepper stepper(*module, sgd, {.clip_grad_norm = 1, .scale_loss = scaled});
    if (scaled) stepper.set_loss_scale({.scale = scale});
    const std::vector<float> before = flat_parameters(*module);
    const StepResult result = one_step(stepper, window, 0.5);
    CHECK(stepper.loss_scale().scale == result.loss_scale.scale);
    return std::tuple(result, before, flat_parameters(*module));
  };
  const auto [plain, start, expected] = run(false, 1);
  const auto [scaled, start2, actual] = run(true, 1024);  // a power of two: exact
  CHECK(scaled.loss == plain.loss);
  CHECK(scaled.grad_norm == doctest::Approx(plain.grad_norm).epsilon(1e-6));
  CHECK(scaled.loss_scale.scale == 1024);
  CHECK(scaled.loss_scale.good_steps == 1);
  for (std::size_t i = 0; i < actual.size(); ++i) REQUIRE(actual[i] == doctest::Approx(expected[i]).epsilon(1e-6));
  const auto [lost, start3, unchanged] = run(true, std::numeric_limits<float>::max());
  CHECK(lost.skipped());
  CHECK(std::isfinite(lost.loss));
  CHECK(lost.loss_scale.scale < std::numeric_limits<float>::max());
  CHECK(lost.loss_scale.skipped_steps == 1);
  CHECK(unchanged == start3);
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
