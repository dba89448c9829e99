#include <limits>

#include "core/capture.hpp"
#include "cuda/twin.hpp"
#include "cuttle/ops.hpp"

using namespace cuttle;
using namespace cuttle::test;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr std::int64_t kSizes[] = {1, 7, 1000, 70001, 3'000'017};

/// Runs call(kernels, inputs, out) on f32 tensors on the CPU and on v.dtype's on the GPU. Arithmetic is the same on
/// both, so the GPU's result is the CPU's, rounded.
template <class Call> void check_same(const Variant& v, const std::vector<Values>& inputs, Call call) {
  const Shape shape{static_cast<std::int64_t>(inputs[0].size())};
  std::vector<Tensor> exact, narrow;
  for (const Values& values : inputs) {
    const Tensor host = rounded(values, shape, v.dtype);
    exact.push_back(host.to(DType::f32));
    narrow.push_back(upload(host, v.offset));
  }
  const Tensor expected = Tensor::empty(shape), out = output(shape, v.dtype, Layout::nhwc, v.offset);
  call(cpu(), exact, expected);
  const Values values = from(expected.to(v.dtype));
  call(on_gpu(), narrow, out);
  CHECK(error_of(from(out), values, 1) == 0);
  for (const Tensor& in_place : narrow) {
    std::vector<Tensor> again;
    for (const Tensor& t : narrow) again.push_back(t.impl() == in_place.impl() ? t : t.clone());
    const Tensor before = in_place.clone();
    call(on_gpu(), again, in_place);
    CHECK(error_of(from(in_place), values, 1) == 0);
    Tensor(in_place).copy_(before);
  }
}

/// Random numbers that hold the special ones too.
Values numbers(std::int64_t n, unsigned seed) {
  Values values = random_values(n, seed, 0, 4);
  const double special[] = {kNan, kInf, -kInf, 0, 6, -0.0, 65504, -1e-7};
  for (std::size_t i = 0; i < std::size(special) && i * 11 < values.size(); ++i) values[i * 11] = special[i];
  return values;
}

}  // namespace

TEST_CASE("cuda: add, scale and relu equal the CPU's from any address, in place and not") {
  for (const Variant& v : variants(false)) {
    CAPTURE(v.str());
    for (const std::int64_t n : kSizes) {
      const Values a = numbers(n, 1), b = numbers(n, 2);
      check_same(v, {a, b}, [](auto& k, auto& in, const Tensor& out) { k.add(in[0], in[1], out); });
      check_same(v, {a}, [](auto& k, auto& in, const Tensor& out) { k.scale(in[0], -2.5, out); });
      for (const double ceiling : {kInf, 6.0}) {
        check_same(v, {a}, [=](auto& k, auto& in, const Tensor& out) { k.relu(in[0], ceiling, out); });
        check_same(v, {a, b},
                   [=](auto& k, auto& in, const Tensor& out) { k.relu_backward(in[0], in[1], ceiling, out); });
      }
    }
  }
}

TEST_CASE("cuda: fill and broadcast write every element and nothing else") {
  for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8}) {
    CAPTURE(name_of(dtype));
    for (const std::int64_t n : {std::int64_t{1}, std::int64_t{15}, std::int64_t{4099}}) {
      const Tensor base = output({n + 3}, dtype);
      on_gpu().fill(base.slice(1, n + 1), 3);
      Values expected(static_cast<std::size_t>(n + 3), 3);
      expected[0] = expected[expected.size() - 2] = expected.back() = 77;
      CHECK(from(base) == expected);
      if (!is_floating(dtype) || dtype == DType::f64) continue;
      const Tensor scalar = Tensor::scalar(0.1, {dtype, gpu()});
      on_gpu().broadcast(scalar, base.slice(1, n + 1));
      const double tenth = scalar.item<double>();
      CHECK(std::abs(tenth - 0.1) <= 0.1 * rounding(dtype));
      for (std::int64_t i = 1; i <= n; ++i) expected[static_cast<std::size_t>(i)] = tenth;
      CHECK(from(base) == expected);
    }
  }
}

TEST_CASE("cuda: uniform numbers and dropout masks are the CPU's, bit for bit; normal ones to the last place") {
  constexpr PhiloxKey kKey{0x1234'5678'9abc'def0, 3, 1000};
  for (const Variant& v : variants(false)) {
    CAPTURE(v.str());
    for (const std::int64_t n : kSizes) {
      const Shape shape{n};
      const Tensor exact = Tensor::empty(shape), out = output(shape, v.dtype, Layout::nhwc, v.offset);
      cpu().uniform(exact, kKey, 0, 1);
      on_gpu().uniform(out, kKey, 0, 1);
      CHECK(from(out) == from(exact.to(v.dtype)));
      cpu().normal(exact, kKey, 0.5, 2);
      on_gpu().normal(out, kKey, 0.5, 2);
      const Values expected = from(exact), actual = from(out);
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < actual.size(); ++i) {
        // 16-bit numbers below 2^-14 have fewer digits.
        const double least = v.dtype == DType::f32 ? 1e-12 : 0x1p-25;
        wrong += !(std::abs(actual[i] - expected[i]) <= std::abs(expected[i]) * (rounding(v.dtype) + 0x1p-23) + least);
      }
      CHECK(wrong == 0);
      for (const double p : {0.1, 0.5, 1.0}) {
        check_same(v, {numbers(n, 3)},
                   [=](auto& k, auto& in, const Tensor& out) { k.dropout(in[0], p, kKey, {}, out); });
      }
    }
  }
  const Tensor exact = Tensor::empty({1001}), out = output({1001}, DType::f32);
  cpu().uniform(exact, kKey, -2, 5);
  on_gpu().uniform(out, kKey, -2, 5);
  CHECK(from(out) == from(exact));
}

TEST_CASE("cuda: dropout reads the counter on the device when it runs") {
  const Tensor x = Tensor::full({1000}, 1), there = x.to(gpu());
  const Tensor advance = Tensor::from(std::vector<std::int64_t>{25}, {}), counter = advance.to(gpu());
  const Tensor expected = Tensor::empty({1000}), out = output({1000}, DType::f32);
  for (const std::int64_t value : {25, 26}) {
    Tensor(counter).fill_(static_cast<double>(value));
    Tensor(advance).fill_(static_cast<double>(value));
    cpu().dropout(x, 0.3, {1, 2, 3}, advance, expected);
    on_gpu().dropout(there, 0.3, {1, 2, 3}, counter, out);
    CHECK(from(out) == from(expected));
  }
}

TEST_CASE("cuda: sum is accurate where f32 addition is not, the same every time, and NaN where an element is") {
  for (const Variant& v : variants(false)) {
    CAPTURE(v.str());
    for (const std::int64_t n : {std::int64_t{1}, std::int64_t{1000}, std::int64_t{3'000'017}}) {
      const Tensor host = rounded(random_values(n, 4, 0.1, 0.5), {n}, v.dtype), x = upload(host, v.offset);
      const Tensor out = output({}, v.dtype), again = output({}, v.dtype), expected = Tensor::empty({}, {DType::f64});
      cpu().sum(host.to(DType::f64), expected);
      // f16 cannot hold the largest of these sums, and then both are infinite.
      on_gpu().sum(x, out);
      const double want = from(expected.to(v.dtype))[0];
      CHECK(std::isinf(from(out)[0]) == std::isinf(want));
      CHECK(error_of(from(out), {want}, 1) <= std::abs(want) * 2 * rounding(v.dtype));
      on_gpu().sum(x, again);
      CHECK(from(again) == from(out));
      on_gpu().fill(x.slice(n / 2, n / 2 + 1), kNan);
      on_gpu().sum(x, out);
      CHECK(std::isnan(from(out)[0]));
    }
  }
}

TEST_CASE("cuda: non_finite_count counts NaN and both infinities") {
  for (const Variant& v : variants(false)) {
    CAPTURE(v.str());
    for (const std::int64_t n : {std::int64_t{3}, std::int64_t{100'003}}) {
      const Tensor x = upload(rounded(random_values(n, 6), {n}, v.dtype), v.offset), out = output({}, DType::i64);
      on_gpu().non_finite_count(x, out);
      CHECK(out.item<std::int64_t>() == 0);
      on_gpu().fill(x.slice(0, 1), kNan);
      on_gpu().fill(x.slice(n / 2, n / 2 + 1), kInf);
      on_gpu().fill(x.slice(n - 1, n), -kInf);
      on_gpu().non_finite_count(x, out);
      CHECK(out.item<std::int64_t>() == 3);
    }
  }
}

TEST_CASE("cuda: normalize_images equals the CPU's in every dtype and layout, with and without windows") {
  for (const Shape& shape : {Shape{3, 1, 28, 28}, Shape{3, 3, 13, 11}, Shape{3, 3, 32, 32}, Shape{3, 70, 5, 7}}) {
    Values bytes;
    for (std::int64_t i = 0; i < shape.numel(); ++i) bytes.push_back(static_cast<double>(i * 7 % 256));
    const Tensor mean = tensor<float>(random_values(shape[1], 7, 0.5, 0.1), {shape[1]});
    const Tensor stddev = tensor<float>(random_values(shape[1], 8, 0.3, 0.02), {shape[1]});
    const Tensor moved = tensor<std::int32_t>({0, 0, 1, -3, 2, 0, 4, -5, 1}, {3, 3});
    for (const Variant& v : variants(true)) {
      const Tensor images = tensor<std::uint8_t>(bytes, shape, v.layout), there = upload(images, v.offset);
      for (const Tensor& windows : {Tensor(), moved}) {
        CAPTURE(v.str());
        const Tensor expected = Tensor::empty(shape, {DType::f32, kCpu, v.layout});
        const Tensor out = output(shape, v.dtype, v.layout, v.offset);
        cpu().normalize_images(images, mean, stddev, windows, expected);
        on_gpu().normalize_images(there, mean.to(gpu()), stddev.to(gpu()),
                                  windows.defined() ? windows.to(gpu()) : windows, out);
        CHECK(error_of(from(out), from(expected.to(v.dtype)), 1) <= largest(from(expected)) * 1e-6);
      }
    }
  }
}
