#include <limits>

#include "support/cpu_kernel_util.hpp"

using namespace cuttle;
using namespace cuttle::test;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr std::int64_t kSizes[] = {1, 7, 1000, 70001};

template <class F> Values mapped(const Values& x, F f) {
  Values result;
  for (const double value : x) result.push_back(f(value));
  return result;
}

template <class From, class To> Values converted(const Values& in) {
  const Shape shape{static_cast<std::int64_t>(in.size())};
  const Tensor out = unwritten<To>(shape);
  cpu().convert(tensor<From>(in, shape), out);
  return values<To>(out);
}

template <class From, class To> void check_pair(const Shape& shape) {
  Values numbers(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<double>(i % 251);
  for (const Layout from : kLayouts) {
    for (const Layout to : kLayouts) {
      const Tensor out = unwritten<To>(shape, to);
      cpu().convert(tensor<From>(numbers, shape, from), out);
      CHECK(values<To>(out) == numbers);
    }
  }
}

template <class From> void check_pairs_from() {
  for (const Shape& shape : {Shape{2, 3, 5, 7}, Shape{1, 33, 17, 2}, Shape{3, 1, 4, 4}, Shape{2, 40, 1, 1}, Shape{5}}) {
    check_pair<From, float>(shape);
    check_pair<From, double>(shape);
    check_pair<From, Half>(shape);
    check_pair<From, BFloat16>(shape);
    check_pair<From, std::int32_t>(shape);
    check_pair<From, std::int64_t>(shape);
    check_pair<From, std::uint8_t>(shape);
  }
}

template <class T> void check_arithmetic(std::int64_t n) {
  const Shape shape{n};
  const Values a = random_values(n, 1), b = random_values(n, 2);
  Values sum;
  for (std::size_t i = 0; i < a.size(); ++i)
    sum.push_back(static_cast<double>(static_cast<T>(a[i]) + static_cast<T>(b[i])));
  const Tensor x = tensor<T>(a, shape), out = unwritten<T>(shape);
  cpu().add(x, tensor<T>(b, shape), out);
  CHECK(values<T>(out) == sum);
  cpu().scale(x, -2.5, out);
  CHECK(values<T>(out) ==
        mapped(a, [](double v) { return static_cast<double>(static_cast<T>(v) * static_cast<T>(-2.5)); }));
  cpu().relu(x, kInf, out);
  CHECK(values<T>(out) == mapped(a, [](double v) { return std::max(v, 0.0); }));
  cpu().add(x, tensor<T>(b, shape), x);
  CHECK(values<T>(x) == sum);
  cpu().add(x, x, x);
  cpu().scale(x, 0.5, x);
  CHECK(values<T>(x) == sum);
  cpu().relu(x, kInf, x);
  CHECK(values<T>(x) == mapped(sum, [](double v) { return std::max(v, 0.0); }));
}

template <class T> void check_relu_backward(std::int64_t n) {
  const Shape shape{n};
  const Values before = random_values(n, 3), gradient = random_values(n, 4);
  Values expected = gradient;
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] = before[i] > 0 ? gradient[i] : 0;
  const Tensor y = unwritten<T>(shape), dy = tensor<T>(gradient, shape), dx = unwritten<T>(shape);
  cpu().relu(tensor<T>(before, shape), kInf, y);
  cpu().relu_backward(y, dy, kInf, dx);
  CHECK(values<T>(dx) == expected);
  cpu().relu_backward(y, dy, kInf, dy);
  CHECK(values<T>(dy) == expected);
}

template <class Out = float> double total(const Values& v) {
  const Shape shape{static_cast<std::int64_t>(v.size())};
  const Tensor out = Tensor::empty({}, {dtype_of<Out>});
  cpu().sum(tensor<Out>(v, shape), out);
  return static_cast<double>(*out.data<Out>());
}

}  // namespace

TEST_CASE("add, scale and relu equal scalar arithmetic, in place and not, for any number of threads") {
  for (const int threads : {1, 2, 3}) {
    const Threads scope(threads);
    for (const std::int64_t n : kSizes) {
      check_arithmetic<float>(n);
      check_arithmetic<double>(n);
      check_relu_backward<float>(n);
      check_relu_backward<double>(n);
    }
  }
}

TEST_CASE("relu passes NaN on and its gradient is zero at zero") {
  const Tensor y = unwritten<float>({4}), dx = unwritten<float>({4});
  cpu().relu(tensor<float>({-kInf, kInf, 0, kNan}, {4}), kInf, y);
  CHECK(error_of(values<float>(y), {0, kInf, 0, kNan}) == 0);
  cpu().relu_backward(y, tensor<float>({1, 2, 3, 4}, {4}), kInf, dx);
  CHECK(values<float>(dx) == Values{0, 2, 0, 4});
}

TEST_CASE("relu with a ceiling cuts off there, passes NaN on, and its gradient is zero at both ends") {
  const Shape shape{7};
  for (const bool in_place : {false, true}) {
    const Tensor x = tensor<float>({-kInf, 0, 2.5, 6, 6.5, kInf, kNan}, shape),
                 y = in_place ? x : unwritten<float>(shape);
    cpu().relu(x, 6, y);
    CHECK(error_of(values<float>(y), {0, 0, 2.5, 6, 6, 6, kNan}) == 0);
    const Tensor dy = tensor<float>({1, 2, 3, 4, 5, 6, 7}, shape), dx = in_place ? dy : unwritten<float>(shape);
    cpu().relu_backward(y, dy, 6, dx);
    CHECK(values<float>(dx) == Values{0, 0, 3, 0, 0, 0, 7});
  }
}

TEST_CASE("arithmetic on a dtype that is only stored names the op and the tensor") {
  const Tensor x = tensor<Half>({1, 2}, {2});
  try {
    cpu().relu(x, kInf, x);
    FAIL("no error");
  } catch (const DtypeError& error) {
    CHECK(error.cause() == "relu: the CPU computes in f32 and f64, and got f16[2] cpu");
    CHECK_FALSE(error.hint().empty());
  }
  const Tensor counts = tensor<std::int64_t>({1, 2}, {2});
  CHECK_THROWS_AS(cpu().add(counts, counts, counts), DtypeError);
}

TEST_CASE("convert keeps numbers that both dtypes hold, between every pair of dtypes and layouts") {
  check_pairs_from<float>();
  check_pairs_from<double>();
  check_pairs_from<Half>();
  check_pairs_from<BFloat16>();
  check_pairs_from<std::int32_t>();
  check_pairs_from<std::int64_t>();
  check_pairs_from<std::uint8_t>();
}

TEST_CASE("convert rounds f32 to f16 to nearest even, with subnormals and overflow to infinity") {
  CHECK(converted<float, Half>({1 + 0x1p-11, 1 + 0x3p-11, 1 + 0x1.8p-11, -1 - 0x1p-10}) ==
        Values{1, 1 + 0x2p-10, 1 + 0x1p-10, -1 - 0x1p-10});
  CHECK(converted<float, Half>({65504, 65519.996, 65520, -1e30, kInf}) == Values{65504, 65504, kInf, -kInf, kInf});
  CHECK(converted<float, Half>({0x1p-24, 0x1p-25, 0x1.002p-25, 0x3p-25, 0x1.ffap-15, 0x1.ffcp-15}) ==
        Values{0x1p-24, 0, 0x1p-24, 0x2p-24, 0x1.ff8p-15, 0x1p-14});
  CHECK(std::isnan(converted<float, Half>({kNan})[0]));
  CHECK(std::signbit(converted<float, Half>({-0.0})[0]));
}

TEST_CASE("convert rounds f32 to bf16 to nearest even and keeps NaN") {
  CHECK(converted<float, BFloat16>({1 + 0x1p-8, 1 + 0x3p-8, 1 + 0x1.02p-8, 0x1.fffp127, -kInf}) ==
        Values{1, 1 + 0x2p-7, 1 + 0x1p-7, kInf, -kInf});
  CHECK(std::isnan(converted<float, BFloat16>({kNan})[0]));
}

TEST_CASE("convert rounds f64 and integers to f32 to nearest even") {
  CHECK(converted<double, float>({1 + 0x1p-24, 1 + 0x3p-24, 1e300, 0.1}) ==
        Values{1, 1 + 0x2p-23, kInf, static_cast<double>(0.1f)});
  CHECK(converted<std::int64_t, float>({16777217, 16777219}) == Values{16777216, 16777220});
  CHECK(converted<std::int32_t, Half>({2049, 65504, 70000}) == Values{2048, 65504, kInf});
}

TEST_CASE("convert truncates floats towards zero and wraps integers, as PyTorch does") {
  CHECK(converted<float, std::int32_t>({1.9, -1.9, 2147483520, -2147483648.0}) ==
        Values{1, -1, 2147483520, -2147483648.0});
  CHECK(converted<double, std::int64_t>({-0.99, 9007199254740993.0}) == Values{0, 9007199254740992.0});
  CHECK(converted<Half, std::uint8_t>({3.75, 255}) == Values{3, 255});
  CHECK(converted<float, std::uint8_t>({-1, 300.7, -257}) == Values{255, 44, 255});
  CHECK(converted<std::int64_t, std::uint8_t>({-1, 300}) == Values{255, 44});
  CHECK(converted<std::int64_t, std::int32_t>({0x1p40 + 5, 2147483648.0}) == Values{5, -2147483648.0});
}

TEST_CASE("fill writes every element of every dtype") {
  const auto filled = [](DType dtype, double value) {
    const Tensor t = Tensor::empty({3, 5}, {dtype}), as_double = unwritten<double>({3, 5});
    cpu().fill(t, value);
    cpu().convert(t, as_double);
    return values<double>(as_double);
  };
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8}) {
    CHECK(filled(dtype, 3) == Values(15, 3));
  }
  CHECK(filled(DType::f16, 0.1) == Values(15, 0x1.998p-4));
  CHECK(filled(DType::f64, 0.1) == Values(15, 0.1));
}

TEST_CASE("sum is accurate where float addition is not, and the same for any number of threads") {
  constexpr std::int64_t kCount = 3'000'017;
  const double tenth = static_cast<double>(0.1f);
  CHECK(total(Values(kCount, 0.1)) == doctest::Approx(kCount * tenth).epsilon(1e-7));
  CHECK(total({1e8, 1, -1e8, 1, 0.5}) == 2.5);
  CHECK(total({3}) == 3);
  CHECK(std::isnan(total({1, kNan, 2})));
  const Values noise = random_values(200'003, 5);
  double exact = 0;
  for (const double v : noise) exact += v;
  CHECK(total<double>(noise) == doctest::Approx(exact).epsilon(1e-11));
  double first = 0;
  for (const int threads : {1, 2, 3}) {
    const Threads scope(threads);
    if (threads == 1) first = total<double>(noise);
    CHECK(total<double>(noise) == first);
  }
}

TEST_CASE("non_finite_count counts NaN and both infinities") {
  const Tensor count = tensor<std::int64_t>({-1}, {});
  Values v = random_values(5001, 6);
  v[0] = kNan;
  v[17] = kInf;
  v[5000] = -kInf;
  v[9] = 3.4028234663852886e38;
  cpu().non_finite_count(tensor<float>(v, {5001}), count);
  CHECK(*count.data<std::int64_t>() == 3);
  cpu().non_finite_count(tensor<double>(v, {5001}), count);
  CHECK(*count.data<std::int64_t>() == 3);
}
