#include "support/cpu_kernel_util.hpp"

using namespace cuttle;
using namespace cuttle::test;

namespace {

const Shape kShape{3, 3, 13, 11};

struct Images {
  Values bytes, mean, stddev;
  explicit Images(const Shape& shape)
      : mean(random_values(shape[1], 7, 0.5, 0.1)), stddev(random_values(shape[1], 8, 0.3, 0.02)) {
    for (std::int64_t i = 0; i < shape.numel(); ++i) bytes.push_back(static_cast<double>(i * 7 % 256));
  }
  Tensor normalized(const Shape& shape, Layout layout, const NormalizeOptions& options) const {
    return normalize_images(tensor<std::uint8_t>(bytes, shape, layout), tensor<float>(mean, {shape[1]}),
                            tensor<float>(stddev, {shape[1]}), options);
  }
};

struct Window {
  std::int32_t top, left, flip;
};

/// Image by image and pixel by pixel, in double.
Values expected(const Images& images, const Shape& shape, const std::vector<Window>& windows) {
  const std::int64_t height = shape[2], width = shape[3];
  Values result;
  for (std::int64_t n = 0; n < shape[0]; ++n) {
    const Window window = windows.empty() ? Window{0, 0, 0} : windows[static_cast<std::size_t>(n)];
    for (std::int64_t c = 0; c < shape[1]; ++c)
      for (std::int64_t h = 0; h < height; ++h)
        for (std::int64_t w = 0; w < width; ++w) {
          const std::int64_t row = h + window.top, column = (window.flip ? width - 1 - w : w) + window.left;
          const bool inside = row >= 0 && row < height && column >= 0 && column < width;
          const double byte =
              inside ? images.bytes[static_cast<std::size_t>(((n * shape[1] + c) * height + row) * width + column)] : 0;
          const std::size_t channel = static_cast<std::size_t>(c);
          result.push_back((byte / 255 - images.mean[channel]) / images.stddev[channel]);
        }
  }
  return result;
}

Tensor tensor_of(const std::vector<Window>& windows) {
  std::vector<std::int32_t> values;
  for (const Window& w : windows) values.insert(values.end(), {w.top, w.left, w.flip});
  return Tensor::from(values, {static_cast<std::int64_t>(windows.size()), 3});
}

/// Largest difference between results in f16 or bf16 and exact ones, in units of the result's rounding.
double rounding_error(const Values& actual, const Values& exact, double epsilon) {
  double worst = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    worst = std::max(worst, std::abs(actual[i] - exact[i]) / (epsilon * std::abs(exact[i]) + 1e-6));
  }
  return worst;
}

}  // namespace

TEST_CASE("normalize_images equals (x/255 - mean)/stddev for every byte, channel count and layout") {
  for (const std::int64_t channels : {1, 3, 70}) {
    const Shape shape{2, channels, 13, 11};
    const Images images(shape);
    for (const Layout layout : kLayouts) {
      const Tensor out = images.normalized(shape, layout, {});
      CHECK(out.layout() == layout);
      CHECK(error_of(values<float>(out), expected(images, shape, {})) < 1e-6);
    }
  }
}

TEST_CASE("normalize_images rounds once to the dtype that is asked for") {
  const Images images(kShape);
  const Values exact = expected(images, kShape, {});
  for (const Layout layout : kLayouts) {
    CHECK(error_of(values<double>(images.normalized(kShape, layout, {.dtype = DType::f64})), exact) < 1e-14);
    CHECK(rounding_error(values<Half>(images.normalized(kShape, layout, {.dtype = DType::f16})), exact, 0x1p-11) <
          1.01);
    CHECK(rounding_error(values<BFloat16>(images.normalized(kShape, layout, {.dtype = DType::bf16})), exact, 0x1p-8) <
          1.01);
  }
}

TEST_CASE("normalize_images moves and flips each image as its window says, and is black outside") {
  const Images images(kShape);
  for (const std::vector<Window>& windows :
       {std::vector<Window>{{0, 0, 0}, {0, 0, 1}, {2, -3, 0}}, std::vector<Window>{{-4, 4, 1}, {12, 10, 1}, {1, 1, 7}},
        std::vector<Window>{{13, 0, 0}, {0, -11, 1}, {-2147483647, 2147483647, 0}}}) {
    for (const Layout layout : kLayouts) {
      const Tensor out = images.normalized(kShape, layout, {.windows = tensor_of(windows)});
      CHECK(error_of(values<float>(out), expected(images, kShape, windows)) < 1e-6);
    }
  }
}

TEST_CASE("normalize_images names the argument that does not fit") {
  const Images images(kShape);
  const auto call = [&](const NormalizeOptions& options) { return images.normalized(kShape, Layout::nhwc, options); };
  CHECK_THROWS_AS(call({.dtype = DType::u8}), DtypeError);
  CHECK_THROWS_AS(call({.windows = Tensor::zeros({3, 3})}), DtypeError);
  CHECK_THROWS_AS(call({.windows = Tensor::zeros({2, 3}, {DType::i32})}), ShapeError);
  CHECK_THROWS_AS(call({.windows = Tensor::zeros({9}, {DType::i32})}), ShapeError);
}
