#include <doctest/doctest.h>

#include "cuttle/data.hpp"
#include "cuttle/nn.hpp"
#include "cuttle/optim.hpp"
#include "support/close.hpp"
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

struct LeNet : nn::Module {
  nn::Conv2d conv1{1, 6, {.kernel = 5, .padding = 2}}, conv2{6, 16, {.kernel = 5}};
  nn::Linear fc1{400, 120}, fc2{120, 84}, fc3{84, 10};
  LeNet() {
    add("conv1", conv1);
    add("conv2", conv2);
    add("fc1", fc1);
    add("fc2", fc2);
    add("fc3", fc3);
  }
  Tensor forward(const Tensor& x) override {
    Tensor h = max_pool2d(relu_(conv1(x)), {.kernel = 2});
    h = max_pool2d(relu_(conv2(h)), {.kernel = 2});
    return fc3(relu_(fc2(relu_(fc1(flatten(h))))));
  }
};

/// Images [begin, end) of the set in file order, as the generator takes them.
data::Batch batch_of(const data::ImageSet& set, std::int64_t begin, std::int64_t end) {
  const std::int64_t n = end - begin, bytes = set.image_bytes();
  const std::vector<std::uint8_t> pixels(set.pixels.begin() + begin * bytes, set.pixels.begin() + end * bytes);
  const std::vector<std::int64_t> labels(set.labels.begin() + begin, set.labels.begin() + end);
  const Tensor images = Tensor::from(pixels, {n, set.channels, set.height, set.width});
  return {normalize_images(images, Tensor::from(std::vector<float>{0.1307f}, {1}),
                           Tensor::from(std::vector<float>{0.3081f}, {1})),
          Tensor::from(labels, {n})};
}

std::vector<nn::NamedTensor> initial_state(const Json& recipe) {
  std::vector<nn::NamedTensor> state;
  for (const Json& spec : recipe) {
    state.push_back({spec.at("name"), formula_tensor(shape_from(spec.at("shape")), formula_from(spec))});
  }
  return state;
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

TEST_CASE("twenty steps of LeNet on MNIST follow PyTorch's loss curve in either layout") {
  const Json& curve = golden().at("lenet")[0];
  const data::ImageSet set = data::mnist(CUTTLE_SOURCE_DIR "/data/mnist", data::Split::train);
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    LeNet net;
    nn::load_state(net, initial_state(curve.at("parameters")));
    net.to(layout);
    optim::SGD sgd{net.parameters(), {.lr = curve.at("lr"), .momentum = curve.at("momentum")}};
    const auto expected = curve.at("losses").get<std::vector<double>>();
    const std::int64_t batch = curve.at("batch");
    std::vector<double> losses;
    for (std::int64_t k = 0; k < std::ssize(expected); ++k) {
      const auto [images, labels] = batch_of(set, k * batch, (k + 1) * batch);
      const Tensor loss = cross_entropy(net(images.to(layout)), labels);
      loss.backward();
      sgd.step();
      sgd.zero_grad();
      losses.push_back(loss.item<double>());
      CAPTURE(k);
      CHECK(std::abs(losses.back() / expected[static_cast<std::size_t>(k)] - 1) < 1e-5);
    }
    CHECK(relative_error(losses, expected) < 1e-5);
    for (const nn::NamedTensor& p : net.named_parameters()) {
      CAPTURE(p.name);
      CHECK(sketch_of(p.tensor.to_vector<double>())[0] ==
            doctest::Approx(curve.at("norms_after").at(p.name).get<double>()).epsilon(1e-5));
    }
  }
}
