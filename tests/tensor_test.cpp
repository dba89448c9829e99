#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "cuttle/autograd.hpp"
#include "cuttle/error.hpp"
#include "cuttle/ops.hpp"
#include "support/close.hpp"

using namespace cuttle;
using namespace cuttle::testing;

namespace {

template <class T> std::vector<T> counting(std::int64_t n) {
  std::vector<T> values(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(i);
  return values;
}

Tensor counted(const Shape& shape, Layout layout = Layout::nhwc) {
  return Tensor::from(counting<float>(shape.numel()), shape, {.layout = layout});
}

std::vector<float> in_memory(const Tensor& t) { return {t.data<float>(), t.data<float>() + t.numel()}; }

}  // namespace

TEST_CASE("a shape counts, indexes from both ends and prints itself") {
  const Shape shape{2, 3, 5};
  CHECK(shape.rank() == 3);
  CHECK(shape.numel() == 30);
  CHECK(shape[0] == 2);
  CHECK(shape[-1] == 5);
  CHECK(shape.str() == "[2,3,5]");
  CHECK(Shape{}.rank() == 0);
  CHECK(Shape{}.numel() == 1);
  CHECK(Shape{}.str() == "[]");
  CHECK(Shape{4, 0, 7}.numel() == 0);
  CHECK(Shape{2, 3} != Shape{2, 3, 1});
  CHECK(Shape{2, 3} == Shape{2, 3});
}

TEST_CASE("impossible shapes are refused with the shape in the message") {
  CHECK_THROWS_WITH_AS((Shape{1, 1, 1, 1, 1, 1, 1}), doctest::Contains("rank 7"), ShapeError);
  CHECK_THROWS_WITH_AS((Shape{2, -3}), doctest::Contains("[2,-3]"), ShapeError);
  const std::int64_t big = std::int64_t{1} << 40;
  CHECK_THROWS_WITH_AS((Shape{big, big}.numel()), doctest::Contains("[1099511627776,1099511627776]"), ShapeError);
  CHECK(Shape{big, 0, big}.numel() == 0);
  // 2^62 elements fit 63 bits, their bytes do not.
  CHECK_THROWS_AS(Tensor::empty({std::int64_t{1} << 62}), ShapeError);
}

TEST_CASE("values go in and come out in logical order in both layouts") {
  for (const Shape& shape : {Shape{2, 3, 4, 5}, Shape{1, 7, 1, 1}, Shape{3, 1, 2, 5}, Shape{6}, Shape{2, 3}, Shape{}}) {
    const auto values = counting<float>(shape.numel());
    for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
      const Tensor t = Tensor::from(values, shape, {.layout = layout});
      CHECK(t.layout() == layout);
      CHECK(t.to_vector<float>() == values);
    }
  }
  CHECK_THROWS_WITH_AS(Tensor::from(std::vector<float>(5), {2, 3}), doctest::Contains("5 values"), ShapeError);
}

TEST_CASE("NHWC puts the channels of a pixel side by side in memory, NCHW a channel's pixels") {
  const Shape shape{1, 2, 2, 2};
  CHECK(in_memory(counted(shape, Layout::nchw)) == std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(in_memory(counted(shape, Layout::nhwc)) == std::vector<float>{0, 4, 1, 5, 2, 6, 3, 7});
}

TEST_CASE("every dtype round-trips values that it can hold") {
  const std::vector<float> values{0, 1, 2, 100, 200, 255};
  const Tensor t = Tensor::from(values, {6});
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8}) {
    CAPTURE(name_of(dtype));
    const Tensor converted = t.to(dtype);
    CHECK(converted.dtype() == dtype);
    CHECK(converted.nbytes() == 6 * size_of(dtype));
    CHECK(converted.to_vector<float>() == values);
    CHECK(converted.to(DType::f32).to_vector<float>() == values);
  }
}

TEST_CASE("large i64 values and small doubles lose nothing on the way") {
  const std::vector<std::int64_t> large{(std::int64_t{1} << 53) + 1, -(std::int64_t{1} << 62)};
  CHECK(Tensor::from(large, {2}).to_vector<std::int64_t>() == large);
  const std::vector<double> fine{1 + 1e-15, 1e-300};
  CHECK(Tensor::from(fine, {2}).to_vector<double>() == fine);
}

TEST_CASE("data() of another type is a DtypeError naming both") {
  const Tensor t = Tensor::zeros({2, 3, 1, 1}, {.dtype = DType::f16});
  CHECK_THROWS_WITH_AS(t.data<float>(), doctest::Contains("f16[2,3,1,1] NHWC cpu"), DtypeError);
  CHECK_NOTHROW(t.data<Half>());
}

TEST_CASE("an undefined tensor says so instead of crashing") {
  const Tensor none;
  CHECK_FALSE(none.defined());
  CHECK(none.str() == "undefined");
  CHECK_THROWS_AS(none.shape(), Error);
  CHECK_THROWS_AS(none.numel(), Error);
  CHECK_THROWS_AS(none.requires_grad(), Error);
  CHECK_THROWS_AS(none.detach(), Error);
  CHECK_THROWS_AS(relu(none), Error);
  CHECK_THROWS_AS(conv2d(none, none), Error);
}

TEST_CASE("item() takes the only element and refuses more") {
  CHECK(Tensor::scalar(2.5).item<double>() == 2.5);
  CHECK(Tensor::full({1, 1}, 7, {.dtype = DType::i64}).item<std::int64_t>() == 7);
  CHECK_THROWS_AS(Tensor::zeros({2}).item<float>(), ShapeError);
  CHECK_THROWS_AS(Tensor::zeros({0}).item<float>(), ShapeError);
}

TEST_CASE("reshape is a view where the memory order allows it and keeps logical order everywhere") {
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    const Tensor t = counted({2, 3, 4, 5}, layout);
    CHECK(t.reshape({6, 20}).to_vector<float>() == counting<float>(120));
    CHECK(t.reshape({3, 2, 5, 4}).to_vector<float>() == counting<float>(120));
    CHECK(t.reshape({-1, 10}).shape() == Shape{12, 10});
    CHECK((t.reshape({120}).raw_data() == t.raw_data()) == (layout == Layout::nchw));
  }
  const Tensor rows = counted({6, 20});
  CHECK(rows.reshape({2, 60}).raw_data() == rows.raw_data());
  const Tensor grey = counted({3, 1, 4, 5});
  CHECK(flatten(grey).raw_data() == grey.raw_data());
  const Tensor pooled = counted({3, 7, 1, 1});
  CHECK(flatten(pooled).raw_data() == pooled.raw_data());
}

TEST_CASE("reshape refuses what does not fit") {
  const Tensor t = counted({2, 3, 4});
  CHECK_THROWS_WITH_AS(t.reshape({5, 5}), doctest::Contains("24 elements"), ShapeError);
  CHECK_THROWS_AS(t.reshape({-1, 5}), ShapeError);
  CHECK_THROWS_AS(t.reshape({-1, -1, 24}), ShapeError);
  CHECK_THROWS_AS(t.reshape({-1, 0}), ShapeError);
  CHECK_THROWS_AS(t.reshape({-2, -12}), ShapeError);
  CHECK_THROWS_AS(flatten(t, 3), ShapeError);
  CHECK_THROWS_AS(flatten(t, -1), ShapeError);
  const std::int64_t big = std::int64_t{1} << 32;
  CHECK_THROWS_AS(t.reshape({-1, big, big}), ShapeError);
}

TEST_CASE("a slice is a view of rows and refuses rows that are not there") {
  Tensor t = counted({4, 3, 1, 2});
  const Tensor middle = t.slice(1, 3);
  CHECK(middle.shape() == Shape{2, 3, 1, 2});
  CHECK(middle.to_vector<float>() == std::vector<float>{6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17});
  t.fill_(-1);
  CHECK(middle.to_vector<float>() == std::vector<float>(12, -1.0f));
  CHECK(t.slice(2, 2).numel() == 0);
  CHECK_THROWS_AS(t.slice(-1, 2), ShapeError);
  CHECK_THROWS_AS(t.slice(3, 5), ShapeError);
  CHECK_THROWS_AS(t.slice(3, 2), ShapeError);
  CHECK_THROWS_AS(Tensor::scalar(1).slice(0, 1), ShapeError);
}

TEST_CASE("views and detached tensors share the version of their storage, copies do not") {
  Tensor t = Tensor::zeros({4, 2});
  const Tensor view = t.reshape({8}), alias = t.detach(), copy = t.clone();
  const std::uint32_t before = t.version();
  t.fill_(1);
  CHECK(view.version() == before + 1);
  CHECK(alias.version() == before + 1);
  CHECK(copy.version() == 0);
  CHECK(copy.to_vector<float>() == std::vector<float>(8, 0.0f));
  const std::uint32_t read = t.version();
  t.data<float>();
  CHECK(t.version() == read);
  t.mutable_data<float>();
  CHECK(t.version() == read + 1);
}

TEST_CASE("to() returns the very tensor where nothing changes") {
  const Tensor t = counted({2, 3, 2, 2});
  CHECK(t.to(DType::f32).impl() == t.impl());
  CHECK(t.to(Layout::nhwc).impl() == t.impl());
  CHECK(t.to(kCpu).impl() == t.impl());
  const Tensor other = t.to(Layout::nchw);
  CHECK(other.layout() == Layout::nchw);
  CHECK(other.to_vector<float>() == t.to_vector<float>());
  CHECK(other.to(Layout::nhwc).to_vector<float>() == t.to_vector<float>());
}

TEST_CASE("copy_ converts dtype and layout and refuses another shape") {
  Tensor target = Tensor::zeros({2, 3, 2, 2}, {.dtype = DType::f64, .layout = Layout::nchw});
  target.copy_(counted({2, 3, 2, 2}));
  CHECK(target.to_vector<double>() == counting<double>(24));
  CHECK_THROWS_AS(target.copy_(Tensor::zeros({3, 2, 2, 2})), ShapeError);
}

TEST_CASE("set_data changes what every handle sees and drops the gradient") {
  Tensor parameter = counted({2, 2, 2, 3}).requires_grad_();
  const Tensor other_handle = parameter;
  sum(parameter).backward();
  CHECK(parameter.grad().defined());
  parameter.set_data(counted({2, 2, 2, 3}, Layout::nchw).to(DType::f64));
  CHECK(other_handle.dtype() == DType::f64);
  CHECK(other_handle.layout() == Layout::nchw);
  CHECK(other_handle.requires_grad());
  CHECK_FALSE(other_handle.grad().defined());
  CHECK(other_handle.to_vector<double>() == counting<double>(24));
  CHECK_THROWS_AS(parameter.set_data(Tensor::zeros({24})), ShapeError);
  Tensor result = relu(parameter);
  CHECK_THROWS_AS(result.set_data(parameter), AutogradError);
}

TEST_CASE("empty tensors pass through every kind of op") {
  const Tensor none = Tensor::zeros({0, 3, 4, 4});
  CHECK(relu(none).shape() == none.shape());
  CHECK(add(none, none).shape() == none.shape());
  CHECK(max_pool2d(none, {.kernel = 2}).shape() == Shape{0, 3, 2, 2});
  CHECK(avg_pool2d(none, {.kernel = 2}).shape() == Shape{0, 3, 2, 2});
  CHECK(global_avg_pool2d(none).shape() == Shape{0, 3, 1, 1});
  CHECK(flatten(none).shape() == Shape{0, 48});
  CHECK(linear(flatten(none), Tensor::ones({5, 48})).shape() == Shape{0, 5});
  CHECK(none.to(Layout::nchw).to(DType::f16).to_vector<float>().empty());
  CHECK(none.clone().numel() == 0);
  CHECK(sum(none).item<float>() == 0);
  CHECK(std::isnan(mean(none).item<float>()));
  CHECK(softmax(Tensor::zeros({0, 5})).shape() == Shape{0, 5});
  CHECK(accuracy(Tensor::zeros({0, 5}), Tensor::zeros({0}, {.dtype = DType::i64})) == 0);
}

TEST_CASE("rand and randn repeat under one seed, differ under another and have the right moments") {
  manual_seed(3);
  const Tensor uniform = Tensor::rand({100, 1000}), normal = Tensor::randn({100, 1000});
  manual_seed(3);
  CHECK(Tensor::rand({100, 1000}).to_vector<float>() == uniform.to_vector<float>());
  CHECK(Tensor::randn({100, 1000}).to_vector<float>() == normal.to_vector<float>());
  manual_seed(4);
  CHECK(Tensor::rand({100, 1000}).to_vector<float>() != uniform.to_vector<float>());

  const auto moments = [](const Tensor& t) {
    const auto values = t.to_vector<double>();
    const double mean = std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
    double squares = 0;
    for (const double v : values) squares += (v - mean) * (v - mean);
    return std::pair{mean, squares / static_cast<double>(values.size())};
  };
  // Five standard deviations of the estimates over 100,000 draws.
  CHECK(std::abs(moments(uniform).first - 0.5) < 5 * std::sqrt(1.0 / 12 / 1e5));
  CHECK(std::abs(moments(uniform).second - 1.0 / 12) < 0.0015);
  CHECK(std::abs(moments(normal).first) < 5 / std::sqrt(1e5));
  CHECK(std::abs(moments(normal).second - 1) < 5 * std::sqrt(2 / 1e5));
}

TEST_CASE("a size that is not there is an error, also from behind") {
  const Tensor t = Tensor::zeros({2, 3});
  CHECK(t.size(-1) == 3);
  CHECK(t.size(-2) == 2);
  CHECK_THROWS_AS(t.size(2), ShapeError);
  CHECK_THROWS_AS(t.size(-3), ShapeError);
  CHECK_THROWS_AS(Tensor::zeros({}).size(0), ShapeError);
}
