#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <set>

#include "cuttle/autograd.hpp"
#include "cuttle/data.hpp"
#include "cuttle/device.hpp"
#include "cuttle/error.hpp"
#include "cuttle/memory.hpp"
#include "cuttle/ops.hpp"
#include "kernels.hpp"
#include "support/close.hpp"

/// Small inputs that made peers fail, each with the right answer; the number is that of the list of such cases.

using namespace cuttle;
using namespace cuttle::testing;

namespace {

constexpr Layout kLayouts[] = {Layout::nhwc, Layout::nchw};

/// Convolution by its definition, in double: x[N,C,H,W] and w[K,C,R,S] in logical order, one group.
std::vector<double> convolution_by_definition(const Tensor& x, const Tensor& w, std::int64_t stride,
                                              std::int64_t padding, const Shape& out) {
  const auto xv = x.to_vector<double>(), wv = w.to_vector<double>();
  std::vector<double> y;
  for (std::int64_t n = 0; n < out[0]; ++n)
    for (std::int64_t k = 0; k < out[1]; ++k)
      for (std::int64_t p = 0; p < out[2]; ++p)
        for (std::int64_t q = 0; q < out[3]; ++q) {
          double sum = 0;
          for (std::int64_t c = 0; c < x.size(1); ++c)
            for (std::int64_t r = 0; r < w.size(2); ++r)
              for (std::int64_t s = 0; s < w.size(3); ++s) {
                const std::int64_t h = p * stride + r - padding, v = q * stride + s - padding;
                if (h < 0 || h >= x.size(2) || v < 0 || v >= x.size(3)) continue;
                const std::int64_t xi = ((n * x.size(1) + c) * x.size(2) + h) * x.size(3) + v;
                const std::int64_t wi = ((k * x.size(1) + c) * w.size(2) + r) * w.size(3) + s;
                sum += xv[static_cast<std::size_t>(xi)] * wv[static_cast<std::size_t>(wi)];
              }
          y.push_back(sum);
        }
  return y;
}

/// While it lives, starting a convolution kernel is an error.
class ConvolutionsForbidden {
 public:
  ConvolutionsForbidden() : kernels_(backend(DeviceKind::cpu).kernels), before_(kernels_) {
    kernels_.conv2d.run = nullptr;
    kernels_.conv2d_backward_data.run = nullptr;
    kernels_.conv2d_backward_filter.run = nullptr;
    kernels_.bias_backward.run = nullptr;
  }
  ~ConvolutionsForbidden() { kernels_ = before_; }
  ConvolutionsForbidden(const ConvolutionsForbidden&) = delete;
  ConvolutionsForbidden& operator=(const ConvolutionsForbidden&) = delete;

 private:
  Kernels& kernels_;
  const Kernels before_;
};

/// A limit on the CPU's allocator, with an empty cache before and after.
class MemoryLimit {
 public:
  explicit MemoryLimit(std::uint64_t room) {
    allocator().empty_cache();
    allocator().set_limit(allocator().stats().reserved_bytes + room);
  }
  ~MemoryLimit() { allocator().set_limit(std::nullopt); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;
  static memory::CachingAllocator& allocator() { return memory::allocator(kCpu); }
};

Tensor mebibytes(std::int64_t count) { return Tensor::empty({count, 1024, 256}); }

/// Adds a random number to every pixel, so that a draw can be read off the image.
void brighten(std::span<std::uint8_t> image, const data::ImageSet&, PhiloxKey key) {
  const auto word = philox4x32(key.seed, key.stream, key.offset)[0];
  for (std::uint8_t& pixel : image) pixel = static_cast<std::uint8_t>(pixel + word);
}

/// Image tensors of an epoch by index of the image.
std::map<std::int64_t, std::vector<float>> images_of_epoch(const data::Loader& loader, std::int64_t epoch) {
  std::map<std::int64_t, std::vector<float>> images;
  for (std::int64_t b = 0; b < loader.batches(); ++b) {
    const auto indices = loader.indices(epoch, b);
    const data::Batch batch = loader.load(epoch, b);
    for (std::size_t i = 0; i < indices.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i);
      images[indices[i]] = batch.images.slice(row, row + 1).to_vector<float>();
    }
  }
  return images;
}

}  // namespace

TEST_CASE("case 1: a convolution of 209 channels on 2x2 images equals the definition") {
  for (const std::int64_t channels : {208, 209}) {
    for (const Layout layout : kLayouts) {
      const Tensor x = formula_tensor({1, channels, 2, 2}, {.seed = 1}, {.layout = layout});
      const Tensor w = formula_tensor({channels, channels, 3, 3}, {.seed = 2}, {.layout = layout});
      const Tensor y = conv2d(x, w, {}, {.stride = 2, .padding = 1});
      REQUIRE(y.shape() == Shape{1, channels, 1, 1});
      CHECK(relative_error(y.to_vector<double>(), convolution_by_definition(x, w, 2, 1, y.shape())) < 1e-5);
    }
  }
}

TEST_CASE("case 8: an empty batch passes through a convolution without a kernel, and the gradients are zero") {
  for (const Layout layout : kLayouts) {
    Tensor x = Tensor::zeros({0, 3, 3, 3}, {.layout = layout}).requires_grad_();
    Tensor w = formula_tensor({3, 3, 3, 3}, {.seed = 1}, {.layout = layout}).requires_grad_();
    Tensor b = Tensor::ones({3}).requires_grad_();
    const ConvolutionsForbidden forbidden;
    const Tensor y = conv2d(x, w, b);
    CHECK(y.shape() == Shape{0, 3, 1, 1});
    sum(y).backward();
    CHECK(x.grad().shape() == x.shape());
    CHECK(w.grad().to_vector<float>() == std::vector<float>(81, 0.0f));
    CHECK(b.grad().to_vector<float>() == std::vector<float>(3, 0.0f));
  }
}

TEST_CASE("case 8: an empty batch leaves gradients that are already there as they are") {
  Tensor w = Tensor::ones({2, 3, 3, 3}).requires_grad_();
  Tensor fc = Tensor::ones({4, 2}).requires_grad_();
  const auto run = [&](std::int64_t batch) {
    const Tensor x = formula_tensor({batch, 3, 3, 3}, {.seed = 3});
    sum(linear(flatten(conv2d(x, w)), fc)).backward();
  };
  run(2);
  const auto w_before = w.grad().to_vector<float>(), fc_before = fc.grad().to_vector<float>();
  run(0);
  CHECK(w.grad().to_vector<float>() == w_before);
  CHECK(fc.grad().to_vector<float>() == fc_before);
}

TEST_CASE("case 9: a kernel larger than the padded input is a ShapeError that states the arithmetic") {
  const auto conv = [](std::int64_t size, Conv2dOptions options) {
    return conv2d(Tensor::zeros({1, 1, size, size}), Tensor::zeros({1, 1, 3, 3}), {}, options);
  };
  CHECK_THROWS_WITH_AS(conv(2, {}), doctest::Contains("spans 3"), ShapeError);
  CHECK_THROWS_WITH_AS(conv(2, {}), doctest::Contains("f32[1,1,2,2] NHWC cpu has 2 + 2*0 = 2"), ShapeError);
  CHECK_THROWS_WITH_AS(conv(4, {.dilation = 2}), doctest::Contains("dilation 2 spans 5"), ShapeError);
  CHECK_NOTHROW(conv(2, {.padding = 1}));
  CHECK_NOTHROW(conv(5, {.dilation = 2}));
  CHECK_THROWS_WITH_AS(max_pool2d(Tensor::zeros({1, 1, 2, 5}), {.kernel = 3}), doctest::Contains("height"), ShapeError);
  CHECK_THROWS_WITH_AS(avg_pool2d(Tensor::zeros({1, 1, 5, 2}), {.kernel = 3}), doctest::Contains("width"), ShapeError);
}

TEST_CASE("case 10: with a stride larger than the kernel, pixels that no window sees get a gradient of 0") {
  for (const Layout layout : kLayouts) {
    Tensor x = formula_tensor({64, 3, 32, 32}, {.seed = 1}, {.layout = layout}).requires_grad_();
    const Tensor w = formula_tensor({16, 3, 1, 1}, {.seed = 2}, {.layout = layout});
    // The allocator hands out used memory: what the backward pass does not write must not show.
    { const Tensor garbage = Tensor::full({64, 3, 32, 32}, 1e9); }
    const Tensor y = conv2d(x, w, {}, {.stride = 2});
    CHECK(relative_error(y.to_vector<double>(), convolution_by_definition(x, w, 2, 0, {64, 16, 16, 16})) < 1e-5);
    const Tensor dy = formula_tensor(y.shape(), {.seed = 3}, {.layout = layout});
    y.backward(dy);

    const auto grad = x.grad().to_vector<double>(), dyv = dy.to_vector<double>(), wv = w.to_vector<double>();
    std::vector<double> expected(grad.size(), 0.0);
    for (std::size_t n = 0; n < 64; ++n)
      for (std::size_t k = 0; k < 16; ++k)
        for (std::size_t p = 0; p < 16; ++p)
          for (std::size_t q = 0; q < 16; ++q)
            for (std::size_t c = 0; c < 3; ++c) {
              expected[((n * 3 + c) * 32 + 2 * p) * 32 + 2 * q] +=
                  dyv[((n * 16 + k) * 16 + p) * 16 + q] * wv[k * 3 + c];
            }
    CHECK(relative_error(grad, expected) < 1e-5);
    bool untouched_are_zero = true;
    for (std::size_t i = 0; i < grad.size(); ++i) {
      const bool seen = i % 2 == 0 && i / 32 % 2 == 0;
      untouched_are_zero &= seen || grad[i] == 0;
    }
    CHECK(untouched_are_zero);
  }
}

TEST_CASE("case 11: with one channel the layout is what the tag says, for the input and all that follows") {
  const auto values = formula_values(2 * 1 * 4 * 5, {.seed = 1});
  const Tensor w = formula_tensor({3, 1, 3, 3}, {.seed = 2});
  std::vector<double> result;
  for (const Layout layout : kLayouts) {
    const Tensor x = tensor_from(values, {2, 1, 4, 5}, {.layout = layout});
    CHECK(x.layout() == layout);
    CHECK(x.to_vector<double>() == values);
    CHECK(x.str().find(name_of(layout)) != std::string::npos);
    const Tensor y = relu(conv2d(x, w, {}, {.padding = 1}));
    CHECK(y.layout() == layout);
    CHECK(max_pool2d(y, {.kernel = 2}).layout() == layout);
    CHECK(x.reshape({2, 5, 1, 4}).layout() == layout);
    if (result.empty()) result = y.to_vector<double>();
    CHECK(relative_error(y.to_vector<double>(), result) < 1e-6);
  }
  // Retagging moves no memory, and what is computed from it has the new order.
  const Tensor nhwc = tensor_from(values, {2, 1, 4, 5});
  const Tensor nchw = nhwc.to(Layout::nchw);
  CHECK(nchw.raw_data() == nhwc.raw_data());
  CHECK(conv2d(nchw, w).layout() == Layout::nchw);
}

TEST_CASE("case 12: relu_, then an in-place add on the same tensor, then backward names who saved and who changed") {
  for (const Layout layout : kLayouts) {
    Tensor x = formula_tensor({2, 3, 4, 4}, {.seed = 1}, {.layout = layout}).requires_grad_();
    Tensor h = relu_(mul(x, 2));
    const std::uint32_t saved = h.version();
    add_(h, Tensor::ones({2, 3, 4, 4}));
    const Tensor loss = sum(h);
    std::string message;
    try {
      loss.backward();
    } catch (const AutogradError& error) {
      message = error.what();
    }
    CAPTURE(message);
    CHECK(message.find("backward of 'relu_'") != std::string::npos);
    CHECK(message.find("at version " + std::to_string(saved)) != std::string::npos);
    CHECK(message.find("at version " + std::to_string(saved + 1)) != std::string::npos);
    CHECK(message.find("'add_' changed it") != std::string::npos);
    CHECK_FALSE(x.grad().defined());
  }
}

TEST_CASE("case 12: add_, then relu_, the order of a residual block, is right") {
  Tensor x = formula_tensor({2, 3, 4, 4}, {.seed = 1}).requires_grad_();
  Tensor h = mul(x, 2);
  relu_(add_(h, Tensor::full({2, 3, 4, 4}, 0.5)));
  sum(h).backward();
  std::vector<double> expected = x.to_vector<double>();
  for (double& value : expected) value = 2 * value + 0.5 > 0 ? 2 : 0;
  CHECK(x.grad().to_vector<double>() == expected);
}

TEST_CASE("case 16: unequal micro-batches weighted by their samples equal the large batch") {
  const Tensor x = formula_tensor({13, 7}, {.seed = 1});
  const Tensor targets = formula_targets(13, 5, 2);
  Tensor w = formula_tensor({5, 7}, {.seed = 3}).requires_grad_();
  const Tensor whole = cross_entropy(linear(x, w), targets);
  whole.backward();
  const Tensor expected = w.grad();
  w.set_grad({});

  double total = 0;
  for (const auto& [begin, end] : {std::pair{0, 5}, {5, 10}, {10, 13}}) {
    const Tensor logits = linear(x.slice(begin, end), w);
    const Tensor loss = cross_entropy(logits, targets.slice(begin, end), {.reduction = Reduction::sum});
    mul(loss, 1.0 / 13).backward();
    total += loss.item<double>();
  }
  CHECK(relative_error(w.grad(), expected) < 1e-6);
  CHECK(total / 13 == doctest::Approx(whole.item<double>()).epsilon(1e-6));
}

TEST_CASE("case 17: cached memory is released and the request tried again before memory runs out") {
  const MemoryLimit limit(64ull << 20);
  for (const auto& [count, size] : {std::pair{60, 1}, {5, 12}}) {
    {
      std::vector<Tensor> pieces;
      for (int i = 0; i < count; ++i) pieces.push_back(mebibytes(size));
    }
    const memory::Stats cached = MemoryLimit::allocator().stats();
    CHECK(cached.reserved_bytes - cached.allocated_bytes >= 60u << 20);
    CHECK(mebibytes(40).numel() == 40 * 1024 * 256);  // fits only where the cache was
    // Small requests have memory of their own, which has to go; of the large ones' neighbours have merged.
    CHECK((MemoryLimit::allocator().stats().retries > cached.retries) == (size == 1));
    CHECK(MemoryLimit::allocator().stats().out_of_memory == cached.out_of_memory);
  }
}

TEST_CASE("case 17: an out-of-memory error states what is requested, held, cached, largest, and others'") {
  const MemoryLimit limit(64ull << 20);
  const Tensor held = mebibytes(30);
  std::string message;
  try {
    mebibytes(40);
  } catch (const OutOfMemoryError& error) {
    message = error.what();
  }
  CAPTURE(message);
  for (const char* part : {"40.00 MiB requested", "allocated", "reserved", "largest free block", "other processes hold",
                           "--memory-limit"}) {
    CHECK(message.find(part) != std::string::npos);
  }
  CHECK_NOTHROW(mebibytes(20));  // the failure took nothing
}

TEST_CASE("case 17: an op that runs out of memory leaves its inputs and the allocator usable") {
  const MemoryLimit limit(50ull << 20);
  const Tensor x = mebibytes(20);
  const std::uint64_t before = MemoryLimit::allocator().stats().allocated_bytes;
  CHECK_THROWS_AS(add(relu(x), x), OutOfMemoryError);
  CHECK(MemoryLimit::allocator().stats().allocated_bytes == before);
  CHECK_NOTHROW(relu(x));
}

TEST_CASE("case 18: an image's augmentation depends on seed, epoch and index alone, whoever loads it") {
  const data::ImageSet set = data::synthetic(37, 1, 4, 4, 10);
  const auto loader = [&set](std::int64_t batch, int workers, std::uint64_t seed) {
    return data::Loader(set,
                        {.batch = batch, .shuffle = true, .seed = seed, .transform = brighten, .num_workers = workers});
  };
  const auto expected = images_of_epoch(loader(8, 2, 1), 2);
  CHECK(images_of_epoch(loader(8, 0, 1), 2) == expected);
  CHECK(images_of_epoch(loader(5, 2, 1), 2) == expected);
  const int threads = num_threads();
  set_num_threads(1);
  CHECK(images_of_epoch(loader(8, 2, 1), 2) == expected);
  set_num_threads(threads);
  CHECK(images_of_epoch(loader(8, 2, 1), 3) != expected);
  CHECK(images_of_epoch(loader(8, 2, 2), 2) != expected);
}

TEST_CASE("case 18: images are not all augmented alike") {
  data::ImageSet set = data::synthetic(64, 1, 4, 4, 10);
  std::ranges::fill(set.pixels, std::uint8_t{0});
  const data::Loader loader(set, {.batch = 16, .transform = brighten});
  std::set<float> draws;
  for (const auto& [index, image] : images_of_epoch(loader, 0)) draws.insert(image[0]);
  CHECK(draws.size() > 40);  // 64 draws of 256 values: 56 differ on average
}
