#include <doctest/doctest.h>

#include "cuttle/optim.hpp"
#include "support/close.hpp"
#include "support/lenet_curve.hpp"
#include "support/op_cases.hpp"

using namespace cuttle;
using namespace cuttle::testing;

namespace {

const Json& golden() {
  static const Json lists = read_golden_json("train.json");
  return lists;
}

/// The twins of parameters() and give_gradients() in train_cases.py.
std::vector<Tensor> parameters_from(const Json& shapes, Layout layout) {
  std::vector<Tensor> parameters;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    parameters.push_back(formula_tensor(shape_from(shapes[i]), {.seed = 100 + i}, {.layout = layout}).requires_grad_());
  }
  return parameters;
}

void give_gradients(std::vector<Tensor>& parameters, std::uint64_t step) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    Tensor& p = parameters[i];
    p.set_grad(formula_tensor(p.shape(), {.seed = 200 + 10 * step + i}, p.options()));
  }
}

std::unique_ptr<optim::Optimizer> optimizer_from(const Json& spec, std::vector<Tensor> parameters) {
  const Json& o = spec.at("options");
  const bool everywhere = o.value("decay_norm_and_bias", true);
  if (spec.at("kind") == "SGD") {
    const optim::SGDOptions options{.lr = o.at("lr"),
                                    .momentum = o.value("momentum", 0.0),
                                    .dampening = o.value("dampening", 0.0),
                                    .weight_decay = o.value("weight_decay", 0.0),
                                    .nesterov = o.value("nesterov", false),
                                    .decay_norm_and_bias = everywhere};
    return std::make_unique<optim::SGD>(std::move(parameters), options);
  }
  const optim::AdamWOptions defaults;
  const optim::AdamWOptions options{.lr = o.at("lr"),
                                    .beta1 = o.value("beta1", defaults.beta1),
                                    .beta2 = o.value("beta2", defaults.beta2),
                                    .eps = o.value("eps", defaults.eps),
                                    .weight_decay = o.value("weight_decay", defaults.weight_decay),
                                    .decay_norm_and_bias = everywhere};
  return std::make_unique<optim::AdamW>(std::move(parameters), options);
}

optim::Schedule schedule_from(const Json& spec) {
  const Json& o = spec.at("options");
  const double lr = spec.at("lr");
  const std::string kind = spec.at("kind");
  if (kind == "constant") return optim::Schedule::constant(lr);
  if (kind == "step") return optim::Schedule::step(lr, o.at("period"), o.at("gamma"));
  if (kind == "cosine") return optim::Schedule::cosine(lr, o.at("steps"), o.at("min_lr"));
  REQUIRE(kind == "one_cycle");
  return optim::Schedule::one_cycle(lr, o.at("steps"), o.at("rise"), o.at("div"), o.at("final_div"));
}

}  // namespace

TEST_CASE("SGD and AdamW take PyTorch's ten steps in either layout") {
  for (const Json& spec : golden().at("optimizers")) {
    for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
      CAPTURE(spec.at("kind").get<std::string>());
      CAPTURE(spec.at("options").dump());
      std::vector<Tensor> parameters = parameters_from(spec.at("shapes"), layout);
      const auto optimizer = optimizer_from(spec, parameters);
      for (std::uint64_t step = 0; step < spec.at("steps").get<std::uint64_t>(); ++step) {
        give_gradients(parameters, step);
        optimizer->step();
      }
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const auto expected = spec.at("after")[i].get<std::vector<double>>();
        CHECK(relative_error(parameters[i].to_vector<double>(), expected) < 1e-5);
      }
    }
  }
}

TEST_CASE("clip_grad_norm_ scales as PyTorch's does, and leaves small gradients alone") {
  for (const Json& spec : golden().at("clips")) {
    std::vector<Tensor> parameters = parameters_from(spec.at("shapes"), Layout::nhwc);
    give_gradients(parameters, 0);
    const Tensor norm = optim::clip_grad_norm_(parameters, spec.at("max_norm"));
    CHECK(norm.item<double>() == doctest::Approx(spec.at("norm").get<double>()).epsilon(1e-6));
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto expected = spec.at("after")[i].get<std::vector<double>>();
      CHECK(relative_error(parameters[i].grad().to_vector<double>(), expected) < 1e-5);
    }
  }
}

TEST_CASE("schedules give PyTorch's learning rate at every step") {
  for (const Json& spec : golden().at("schedules")) {
    CAPTURE(spec.dump());
    optim::Schedule schedule = schedule_from(spec);
    const std::int64_t warmup = spec.at("warmup");
    if (warmup > 0) schedule = schedule.with_warmup(warmup, spec.at("start_factor"));
    const auto rates = spec.at("rates").get<std::vector<double>>();
    for (std::size_t t = 0; t < rates.size(); ++t) {
      CAPTURE(t);
      CHECK(std::abs(schedule(static_cast<std::int64_t>(t)) - rates[t]) <= 1e-9 * rates[t]);
    }
  }
}

TEST_CASE("fifty steps of LeNet on MNIST follow PyTorch's loss curve in either layout") {
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) check_lenet_curve(golden().at("lenet")[0], kCpu, layout);
}
