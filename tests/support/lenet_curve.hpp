#pragma once
#include <doctest/doctest.h>

#include <vector>

#include "cuttle/data.hpp"
#include "cuttle/nn.hpp"
#include "cuttle/optim.hpp"
#include "support/close.hpp"
#include "support/op_cases.hpp"
#include "support/source_folder.hpp"

/// The training run of lenet_curve() in tests/golden/train_cases.py, on any device.
namespace cuttle::testing {

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
inline data::Batch batch_of(const data::ImageSet& set, std::int64_t begin, std::int64_t end) {
  const std::int64_t n = end - begin, bytes = set.image_bytes();
  const std::vector<std::uint8_t> pixels(set.pixels.begin() + begin * bytes, set.pixels.begin() + end * bytes);
  const std::vector<std::int64_t> labels(set.labels.begin() + begin, set.labels.begin() + end);
  const Tensor images = Tensor::from(pixels, {n, set.channels, set.height, set.width});
  return {normalize_images(images, Tensor::from(std::vector<float>{0.1307f}, {1}),
                           Tensor::from(std::vector<float>{0.3081f}, {1})),
          Tensor::from(labels, {n})};
}

inline std::vector<nn::NamedTensor> initial_state(const Json& recipe) {
  std::vector<nn::NamedTensor> state;
  for (const Json& spec : recipe) {
    state.push_back({spec.at("name"), formula_tensor(shape_from(spec.at("shape")), formula_from(spec))});
  }
  return state;
}

/// Trains from PyTorch's weights on its batches and compares every loss and the norms of the trained parameters.
inline void check_lenet_curve(const Json& curve, Device device, Layout layout) {
  CAPTURE(name_of(layout));
  const data::ImageSet set = data::mnist(source_folder() + "/data/mnist", data::Split::train);
  LeNet net;
  nn::load_state(net, initial_state(curve.at("parameters")));
  net.to(layout);
  net.to(device);
  optim::SGD sgd{net.parameters(), {.lr = curve.at("lr"), .momentum = curve.at("momentum")}};
  const auto expected = curve.at("losses").get<std::vector<double>>();
  const std::int64_t batch = curve.at("batch");
  std::vector<double> losses;
  for (std::int64_t k = 0; k < std::ssize(expected); ++k) {
    const auto [images, labels] = batch_of(set, k * batch, (k + 1) * batch);
    const Tensor loss = cross_entropy(net(images.to(layout).to(device)), labels.to(device));
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

}  // namespace cuttle::testing
