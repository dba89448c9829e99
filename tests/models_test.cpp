#include "cuttle/models.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <numeric>
#include <sstream>

#include "cuttle/autograd.hpp"
#include "cuttle/error.hpp"
#include "support/hashed.hpp"
#include "support/source_folder.hpp"

namespace ct = cuttle;
using ct::Tensor;
using doctest::Approx;
using namespace cuttle::testing;

namespace {

std::unique_ptr<ct::nn::Module> make(const std::string& name, std::int64_t classes) {
  const ct::models::ModelInfo& info = ct::models::find(name);
  return info.make(info.channels, info.size, classes);
}

std::int64_t parameter_count(const ct::nn::Module& model) {
  std::int64_t count = 0;
  for (const Tensor& p : model.parameters()) count += p.numel();
  return count;
}

std::ifstream golden(const std::string& file) {
  std::ifstream in(source_folder() + "/tests/golden/" + file);
  REQUIRE_MESSAGE(in, file);
  return in;
}

std::vector<std::string> lines(const std::string& file) {
  std::ifstream in = golden(file);
  std::vector<std::string> all;
  for (std::string line; std::getline(in, line);) all.push_back(line);
  return all;
}

std::map<std::string, std::vector<double>> results(const std::string& file) {
  std::map<std::string, std::vector<double>> all;
  for (const std::string& line : lines(file)) {
    std::istringstream in(line);
    std::string name;
    in >> name;
    for (double value = 0; in >> value;) all[name].push_back(value);
  }
  return all;
}

void check_close(const std::string& name, const std::vector<double>& got, const std::vector<double>& expected) {
  CAPTURE(name);
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) CHECK(got[i] == Approx(expected[i]).epsilon(1e-8));
}

double norm(const Tensor& t) {
  const std::vector<double> v = t.to_vector<double>();
  return std::sqrt(std::inner_product(v.begin(), v.end(), v.begin(), 0.0));
}

/// Training forward, gradients and evaluation afterwards, in f64, against PyTorch's.
void check_against_pytorch(const std::string& name) {
  const auto model = make(name, 10);
  model->to(ct::DType::f64);
  fill(*model);
  const auto expected = results(name + "_results.txt");
  const Tensor images = affine(4, hashed(1000, {2, 3, 64, 64}), 0);
  const Tensor logits = (*model)(images);
  check_close("train_logits", logits.to_vector<double>(), expected.at("train_logits"));
  const Tensor loss = ct::cross_entropy(logits, Tensor::from<std::int64_t>({3, 7}, {2}));
  check_close("loss", loss.to_vector<double>(), expected.at("loss"));
  loss.backward();
  int compared = 0;
  for (const ct::nn::NamedTensor& p : model->named_parameters()) {
    REQUIRE_MESSAGE(p.tensor.grad().defined(), p.name);
    const auto found = expected.find("grad_norm:" + p.name);
    if (found == expected.end()) continue;
    check_close(p.name, {norm(p.tensor.grad())}, found->second);
    ++compared;
  }
  CHECK(compared == 5);
  model->eval();
  const ct::NoGrad no_grad;
  check_close("eval_logits", (*model)(images).to_vector<double>(), expected.at("eval_logits"));
}

}  // namespace

TEST_CASE("models have torchvision's names and shapes in its order") {
  for (const std::string name : {"resnet18", "resnet50", "vgg11_bn", "vgg16_bn", "mobilenet_v2"}) {
    std::vector<std::string> got;
    for (const auto& t : make(name, 1000)->state()) got.push_back(t.name + " " + t.tensor.shape().str());
    CHECK(got == lines(name + "_state.txt"));
  }
}

TEST_CASE("models have the published numbers of parameters") {
  CHECK(parameter_count(*make("lenet", 10)) == 421'642);
  CHECK(parameter_count(*make("resnet18", 1000)) == 11'689'512);
  CHECK(parameter_count(*make("resnet34", 1000)) == 21'797'672);
  CHECK(parameter_count(*make("resnet50", 1000)) == 25'557'032);
  CHECK(parameter_count(*make("resnet18_cifar", 10)) == 11'173'962);
  CHECK(parameter_count(*make("vgg13_bn", 1000)) == 133'053'736);
  CHECK(parameter_count(*make("mobilenet_v2", 1000)) == 3'504'872);
}

TEST_CASE("lenet has its layers in order and gives logits for any image of at least 4x4") {
  std::vector<std::string> names;
  for (const auto& t : make("lenet", 10)->state()) names.push_back(t.name);
  CHECK(names == std::vector<std::string>{"conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias", "fc1.weight",
                                          "fc1.bias", "fc2.weight", "fc2.bias"});
  for (const std::int64_t size : {4, 13, 28, 32}) {
    const auto model = ct::models::find("lenet").make(3, size, 7);
    CHECK((*model)(Tensor::randn({2, 3, size, size})).shape() == ct::Shape{2, 7});
  }
  CHECK_THROWS_AS(ct::models::find("lenet").make(1, 3, 10), ct::ShapeError);
  CHECK_THROWS_AS(ct::models::find("lenet").make(1, 28, 0), ct::ShapeError);
}

TEST_CASE("resnets start as torchvision's: fan-out normal convolutions, norms of one and zero") {
  ct::manual_seed(1);
  const auto model = make("resnet18_cifar", 10);
  for (const ct::nn::NamedTensor& p : model->named_parameters()) {
    const auto& [name, t] = p;
    CAPTURE(p.name);
    if (t.rank() == 4) {
      const double variance = 2.0 / static_cast<double>(t.size(0) * t.size(2) * t.size(3));
      const double n = static_cast<double>(t.numel());
      CHECK(std::abs(norm(t) * norm(t) / n - variance) < 5 * variance * std::sqrt(2 / n));
    } else if (name.find("bn") != std::string::npos || name.find("downsample.1") != std::string::npos) {
      const std::vector<float> values = t.to_vector<float>();
      CHECK(values == std::vector<float>(values.size(), name.ends_with("weight") ? 1.0f : 0.0f));
    }
  }
}

TEST_CASE("resnet18 gives PyTorch's logits, gradients and running statistics") { check_against_pytorch("resnet18"); }

TEST_CASE("resnet50 gives PyTorch's logits, gradients and running statistics") { check_against_pytorch("resnet50"); }

TEST_CASE("mobilenet_v2 gives PyTorch's logits and gradients in evaluation mode") {
  const auto model = make("mobilenet_v2", 10);
  model->to(ct::DType::f64);
  fill(*model);
  model->eval();
  const auto expected = results("mobilenet_v2_results.txt");
  const Tensor logits = (*model)(affine(4, hashed(1000, {2, 3, 64, 64}), 0));
  check_close("eval_logits", logits.to_vector<double>(), expected.at("eval_logits"));
  ct::cross_entropy(logits, Tensor::from<std::int64_t>({3, 7}, {2})).backward();
  int compared = 0;
  for (const ct::nn::NamedTensor& p : model->named_parameters()) {
    const auto found = expected.find("grad_norm:" + p.name);
    if (found == expected.end()) continue;
    check_close(p.name, {norm(p.tensor.grad())}, found->second);
    ++compared;
  }
  CHECK(compared == 5);
}

TEST_CASE("mobilenet_v2 and vgg11_bn draw dropout in training, and start as torchvision's") {
  ct::manual_seed(1);
  const auto model = make("mobilenet_v2", 10);
  const Tensor x = Tensor::randn({2, 3, 64, 64});
  CHECK((*model)(x).to_vector<float>() != (*model)(x).to_vector<float>());
  model->eval();
  CHECK((*model)(x).to_vector<float>() == (*model)(x).to_vector<float>());
  for (const ct::nn::NamedTensor& p : model->named_parameters()) {
    const auto& [name, t] = p;
    CAPTURE(p.name);
    const double n = static_cast<double>(t.numel());
    if (t.rank() == 4) {
      const double variance = 2.0 / static_cast<double>(t.size(0) * t.size(2) * t.size(3));
      CHECK(std::abs(norm(t) * norm(t) / n - variance) < 5 * variance * std::sqrt(2 / n));
    } else if (t.rank() == 2) {
      CHECK(std::abs(norm(t) * norm(t) / n - 1e-4) < 5e-4 * std::sqrt(2 / n));
    } else {
      const bool ones = name.ends_with("weight");
      CHECK(t.to_vector<float>() == std::vector<float>(static_cast<std::size_t>(t.numel()), ones ? 1.0f : 0.0f));
    }
  }
  const auto vgg = ct::models::find("vgg11_bn").make(3, 32, 7);
  CHECK((*vgg)(Tensor::randn({2, 3, 32, 32})).shape() == ct::Shape{2, 7});
  CHECK_THROWS_AS(ct::models::find("vgg11_bn").make(3, 31, 7), ct::ShapeError);
}

TEST_CASE("resnet18_cifar keeps the full resolution in its stem and gives every parameter a gradient") {
  const auto model = make("resnet18_cifar", 10);
  ct::Shape after_stem;
  ct::nn::ObserverScope scope([&](ct::nn::Module& m, const Tensor& out) {
    if (m.kind() == "BasicBlock" && after_stem.rank() == 0) after_stem = out.shape();
  });
  const Tensor logits = (*model)(Tensor::randn({2, 3, 32, 32}));
  CHECK(after_stem == ct::Shape{2, 64, 32, 32});
  CHECK(logits.shape() == ct::Shape{2, 10});
  ct::cross_entropy(logits, Tensor::from<std::int64_t>({1, 2}, {2})).backward();
  for (const ct::nn::NamedTensor& p : model->named_parameters()) {
    CAPTURE(p.name);
    REQUIRE(p.tensor.grad().defined());
    CHECK(norm(p.tensor.grad()) > 0);
  }
}

TEST_CASE("an unknown model is an error that lists the models") {
  try {
    ct::models::find("resnet19");
    FAIL("resnet19 was found");
  } catch (const ct::UsageError& error) {
    CHECK(error.cause().find("resnet19") != std::string::npos);
    for (const auto& info : ct::models::zoo()) CHECK(error.hint().find(info.name) != std::string::npos);
  }
}
