#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "cuda/gpu.hpp"
#include "cuttle/data.hpp"
#include "cuttle/nn.hpp"
#include "cuttle/ops.hpp"
#include "cuttle/optim.hpp"
#include "train/stepper.hpp"

using namespace cuttle;
using namespace cuttle::testing;
using data::Loader;
using data::LoaderOptions;

namespace {

void darken(std::span<std::uint8_t> image, const data::ImageSet&, PhiloxKey key) {
  const auto factor = philox4x32(key.seed, key.stream, key.offset)[0] % 256;
  for (std::uint8_t& pixel : image) pixel = static_cast<std::uint8_t>(pixel * factor / 256);
}

LoaderOptions options_on(Device device, int workers) {
  return {
      .batch = 96, .shuffle = true, .device = device, .crop_flip = true, .transform = darken, .num_workers = workers};
}

struct Linear final : nn::Module {
  nn::Linear fc{3 * 32 * 32, 10};
  Linear() { add("fc", fc); }
  Tensor forward(const Tensor& x) override { return fc(flatten(x)); }
};

/// The losses of two epochs of windows of `accumulate` batches.
std::vector<double> losses(const data::ImageSet& set, std::int64_t accumulate, bool capture, bool* captured) {
  manual_seed(3);
  Linear net;
  net.to(gpu());
  optim::SGD sgd(net.parameters(), {.lr = 0.01});
  train::Stepper stepper(net, sgd, {.capture = capture, .most_batches = accumulate});
  const Loader loader(set, options_on(gpu(), 2));
  std::vector<double> result;
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    for (std::int64_t first = 0; first < loader.batches(); first += accumulate) {
      const std::int64_t last = std::min(first + accumulate, loader.batches());
      keep_busy(gpu());
      stepper.step(
          {.batches = last - first,
           .images = std::min(last * 96, set.size()) - first * 96,
           .load = [&](std::int64_t b, const data::Batch& into) { return loader.load(epoch, first + b, into); }},
          0.01);
    }
  }
  while (const auto step = stepper.next(true)) result.push_back(step->loss);
  *captured = stepper.captured();
  return result;
}

}  // namespace

TEST_CASE("cuda: a loader's batches are the CPU's, whatever the workers and however far the device is behind") {
  const data::ImageSet set = data::synthetic(1000, 3, 32, 32, 10);
  std::vector<std::vector<float>> expected;
  const Loader reference(set, options_on(kCpu, 0));
  for (std::int64_t b = 0; b < reference.batches(); ++b) {
    expected.push_back(reference.load(1, b).images.to_vector<float>());
  }
  for (const int workers : {0, 1, 4}) {
    for (const bool given : {false, true}) {
      CAPTURE(workers);
      CAPTURE(given);
      const Loader loader(set, options_on(gpu(), workers));
      std::vector<data::Batch> batches;
      data::Batch same;
      keep_busy(gpu());
      for (std::int64_t b = 0; b < loader.batches(); ++b) {
        const bool whole = b + 1 < loader.batches();
        const data::Batch batch = loader.load(1, b, given && whole ? same : data::Batch());
        if (given && whole) same = batch;
        keep_busy(gpu());
        batches.push_back({batch.images.clone(), batch.labels.clone()});
      }
      for (std::int64_t b = 0; b < loader.batches(); ++b) {
        const auto& [images, labels] = batches[static_cast<std::size_t>(b)];
        const std::vector<float> values = images.to_vector<float>(), &wanted = expected[static_cast<std::size_t>(b)];
        REQUIRE(values.size() == wanted.size());
        float error = 0;
        for (std::size_t i = 0; i < values.size(); ++i) error = std::max(error, std::abs(values[i] - wanted[i]));
        CHECK(error < 1e-5f);
        std::vector<std::int64_t> chosen;
        for (const std::int64_t i : loader.indices(1, b)) chosen.push_back(set.labels[static_cast<std::size_t>(i)]);
        CHECK(labels.to_vector<std::int64_t>() == chosen);
      }
    }
  }
}

TEST_CASE("cuda: a batch on its way neither overwrites memory that queued work still reads, nor is overwritten") {
  const data::ImageSet set = data::synthetic(4000, 3, 32, 32, 10);
  const LoaderOptions options{.batch = 1000, .device = gpu(), .num_workers = 1};
  const auto expected = Loader(set, options).load(0, 1).images.to_vector<float>();
  const std::int64_t bytes = 1000 * (3 * 32 * 32 + 8);
  for (int i = 0; i < 5; ++i) {
    const Loader loader(set, options);
    Tensor before = Tensor::full({bytes}, i + 1, {.dtype = DType::u8, .device = gpu()});
    keep_busy(gpu());
    const Tensor read = before.clone();
    before = {};  // its memory may become the batch's, or that of a batch ahead
    loader.load(0, 0);
    std::vector<Tensor> others;
    for (int k = 0; k < 4; ++k) {
      others.push_back(Tensor::full({bytes}, k, {.dtype = DType::u8, .device = gpu()}));
    }
    CHECK(loader.load(0, 1).images.to_vector<float>() == expected);
    CHECK(all_equal(read, static_cast<float>(i + 1)));
    for (int k = 0; k < 4; ++k) CHECK(all_equal(others[static_cast<std::size_t>(k)], static_cast<float>(k)));
  }
}

TEST_CASE("cuda: recorded steps learn from the same batches as steps run op by op") {
  const data::ImageSet set = data::synthetic(2000, 3, 32, 32, 10);
  for (const std::int64_t accumulate : {1, 3}) {
    CAPTURE(accumulate);
    bool captured = false;
    const std::vector<double> plain = losses(set, accumulate, false, &captured);
    CHECK(!captured);
    const std::vector<double> recorded = losses(set, accumulate, true, &captured);
    CHECK(captured);
    REQUIRE(recorded.size() == plain.size());
    for (std::size_t i = 0; i < plain.size(); ++i) CHECK(recorded[i] == doctest::Approx(plain[i]).epsilon(1e-4));
  }
}
