#include <limits>

#include "cuda/twin.hpp"

using namespace cuttle;
using namespace cuttle::test;

namespace {

/// One block and many ranges of rows; narrow and wide; whole packs, odd numbers of columns, more than one tile.
const Shape kShapes[] = {{1, 1},         {5, 7},         {128, 10},        {128, 128},
                         {3, 1000},      {300, 2048},    {9001, 32},       {70000, 8},
                         {20000, 1},     {4000, 209},    {2, 3, 50, 40},   {9, 64, 7, 7},
                         {40, 24, 1, 1}, {1, 1, 90, 91}, {16, 32, 28, 28}, {3, 136, 11, 13}};

/// ReLU's output: about half is 0; some NaN if asked.
Tensor outputs_of(const Shape& shape, DType dtype, Layout layout, bool with_nan) {
  Values y = random_values(shape.numel(), 31);
  for (double& value : y) value = std::max(value, 0.0);
  if (with_nan) y[y.size() / 2] = std::numeric_limits<double>::quiet_NaN();
  return rounded(y, shape, dtype, layout);
}

/// Sums may be off by a rounding, and by what adding up in f32 costs where they cancel.
double sum_error(const Tensor& found, const Tensor& exact, std::int64_t terms) {
  const double root = std::sqrt(static_cast<double>(terms));
  return error_of(from(found), from(exact), 1) / (largest(from(exact)) * rounding(found.dtype()) + 1e-6 * root + 1e-30);
}

}  // namespace

TEST_CASE("cuda: bias gradients, with and without a ReLU before them, equal the CPU's, the same bits every time") {
  for (const Variant& v : variants(true)) {
    for (const Shape& shape : kShapes) {
      if (shape.rank() == 2 && v.layout == Layout::nchw) continue;
      CAPTURE(v.str());
      CAPTURE(shape.str());
      const std::int64_t channels = shape[1], terms = shape.numel() / channels;
      const Tensor dy = rounded(random_values(shape.numel(), 32), shape, v.dtype, v.layout);
      const Tensor y = outputs_of(shape, v.dtype, v.layout, true);
      const TensorOptions wide{DType::f64, kCpu, v.layout};
      const Tensor dx_exact = Tensor::empty(shape, wide), db_exact = Tensor::empty({channels}, wide);
      const Tensor y_there = upload(y, v.offset), dy_there = upload(dy, v.offset);

      cpu().bias_backward(dy.to(DType::f64), db_exact, false);
      const Tensor db = output({channels}, v.dtype), again = output({channels}, v.dtype);
      on_gpu().bias_backward(dy_there, db, false);
      CHECK(sum_error(db, db_exact, terms) <= 2);

      cpu().bias_relu_backward(y.to(DType::f64), dy.to(DType::f64), dx_exact, db_exact, false);
      const Tensor dx = output(shape, v.dtype, v.layout, v.offset);
      on_gpu().bias_relu_backward(y_there, dy_there, dx, db, false);
      CHECK(from(dx) == from(dx_exact));  // nothing is rounded
      CHECK(sum_error(db, db_exact, terms) <= 2);
      // In place, and added to what is there.
      on_gpu().bias_relu_backward(y_there, dy_there, dy_there, again, false);
      CHECK(from(dy_there) == from(dx_exact));
      CHECK(from(again) == from(db));
      on_gpu().bias_backward(dx, again, false);
      CHECK(from(again) == from(db));
      const Values once = from(db);
      on_gpu().bias_relu_backward(y_there, dx, dx, db, true);
      const Values twice = from(db);
      Values expected;
      for (const double value : once) expected.push_back(2 * value);
      CHECK(error_of(twice, expected, 1) <= 2 * largest(expected) * rounding(v.dtype));
    }
  }
}

TEST_CASE("cuda: linear with ReLU equals the CPU's with and without a bias, aligned or not") {
  struct Sizes {
    std::int64_t rows, inputs, outputs;
  };
  for (const Variant& v : variants(false)) {
    for (const auto [m, i, o] : {Sizes{1, 1, 1}, Sizes{128, 3136, 128}, Sizes{130, 129, 10}, Sizes{7, 600, 33}}) {
      CAPTURE(v.str());
      CAPTURE(i);
      const Tensor x = rounded(random_values(m * i, 41), {m, i}, v.dtype);
      const Tensor w = rounded(random_values(o * i, 42, 0, 1 / std::sqrt(static_cast<double>(i))), {o, i}, v.dtype);
      const Tensor bias = rounded(random_values(o, 43), {o}, v.dtype);
      const Tensor exact = Tensor::empty({m, o}, {DType::f64}), y = output({m, o}, v.dtype, Layout::nhwc, v.offset);
      const Tensor x_there = upload(x, v.offset), w_there = upload(w, v.offset), bias_there = upload(bias, v.offset);
      for (const bool with_bias : {true, false}) {
        cpu().linear(x.to(DType::f64), w.to(DType::f64), with_bias ? bias.to(DType::f64) : Tensor(), true, exact);
        on_gpu().linear(x_there, w_there, with_bias ? bias_there : Tensor(), true, y);
        // Without cuBLASLt the product is rounded before the bias is added.
        CHECK(error_of(from(y), from(exact), 1) <= (largest(from(exact)) + 4) * (2 * rounding(v.dtype) + 1e-6));
      }
    }
  }
}
