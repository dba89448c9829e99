#include <algorithm>
#include <numbers>
#include <utility>

#include "core/capture.hpp"
#include "cuttle/ops.hpp"
#include "cuttle/philox.hpp"
#include "support/cpu_kernel_util.hpp"

using namespace cuttle;
using namespace cuttle::test;

namespace {

using Words = std::array<std::uint32_t, 4>;
constexpr PhiloxKey kKey{0x1234'5678'9abc'def0, 3, 1000};

template <class T> Values uniform(std::int64_t n, PhiloxKey key, double low = 0, double high = 1) {
  const Tensor out = unwritten<T>({n});
  cpu().uniform(out, key, low, high);
  return values<T>(out);
}

template <class T> Values normal(std::int64_t n, PhiloxKey key, double mean = 0, double stddev = 1) {
  const Tensor out = unwritten<T>({n});
  cpu().normal(out, key, mean, stddev);
  return values<T>(out);
}

Values dropout(const Values& x, double p, PhiloxKey key) {
  const Shape shape{static_cast<std::int64_t>(x.size())};
  const Tensor out = unwritten<float>(shape);
  cpu().dropout(tensor<float>(x, shape), p, key, {}, out);
  return values<float>(out);
}

double mean_power(const Values& v, int power) {
  double sum = 0;
  for (const double value : v) sum += std::pow(value, power);
  return sum / static_cast<double>(v.size());
}

std::uint32_t word(PhiloxKey key, std::size_t i) { return philox4x32(key.seed, key.stream, key.offset + i / 4)[i % 4]; }

/// Element i depends on (key, i) alone: not on how many there are, who computes them, or where a range starts.
template <class Draw> void check_position_only(Draw draw) {
  const Values all = draw(100'003, kKey);
  for (const std::int64_t n : {1, 2, 3, 5, 999}) CHECK(draw(n, kKey) == Values(all.begin(), all.begin() + n));
  PhiloxKey later = kKey;
  later.offset += 25;
  CHECK(draw(500, later) == Values(all.begin() + 100, all.begin() + 600));
  for (const int threads : {1, 2, 3}) {
    const Threads scope(threads);
    CHECK(draw(100'003, kKey) == all);
  }
}

}  // namespace

TEST_CASE("philox4x32 gives the published known answers of Random123") {
  constexpr std::uint64_t kOnes = ~std::uint64_t{0};
  CHECK(philox4x32(0, 0, 0) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32(kOnes, kOnes, kOnes) == Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  // key a4093822 299f31d0, counter 243f6a88 85a308d3 13198a2e 03707344: the digits of pi
  CHECK(philox4x32(0x299f31d0'a4093822, 0x03707344'13198a2e, 0x85a308d3'243f6a88) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("uniform is the upper 24 bits of each word, stretched to its range") {
  const Values unit = uniform<float>(1001, kKey), stretched = uniform<double>(1001, kKey, -2, 5);
  for (std::size_t i = 0; i < unit.size(); ++i) {
    CHECK(unit[i] == (word(kKey, i) >> 8) / 16777216.0);
    CHECK(stretched[i] == doctest::Approx(-2 + 7 * unit[i]).epsilon(1e-15));
  }
}

TEST_CASE("uniform has the moments of its distribution and stays in its range") {
  const Values v = uniform<float>(1'000'000, kKey, -1, 3);
  CHECK(mean_power(v, 1) == doctest::Approx(1).epsilon(5e-3));
  CHECK(mean_power(v, 2) - 1 == doctest::Approx(16.0 / 12).epsilon(1e-2));
  CHECK(*std::min_element(v.begin(), v.end()) >= -1);
  CHECK(*std::max_element(v.begin(), v.end()) < 3);
}

TEST_CASE("normal is the Box-Muller transform of neighbouring words") {
  const Values v = normal<double>(1002, kKey, 0.5, 2);
  for (std::size_t i = 0; i < v.size(); i += 2) {
    const double radius = std::sqrt(-2 * std::log((word(kKey, i) + 1.0) / 4294967296.0));
    const double angle = 2 * std::numbers::pi * word(kKey, i + 1) / 4294967296.0;
    CHECK(v[i] == doctest::Approx(0.5 + 2 * radius * std::cos(angle)).epsilon(1e-12));
    CHECK(v[i + 1] == doctest::Approx(0.5 + 2 * radius * std::sin(angle)).epsilon(1e-12));
  }
}

TEST_CASE("normal has the moments of its distribution and independent neighbours") {
  const Values v = normal<float>(1'000'000, kKey);
  CHECK(std::abs(mean_power(v, 1)) < 5e-3);
  CHECK(mean_power(v, 2) == doctest::Approx(1).epsilon(1e-2));
  CHECK(std::abs(mean_power(v, 3)) < 2e-2);
  CHECK(mean_power(v, 4) == doctest::Approx(3).epsilon(2e-2));
  Values products;
  for (std::size_t i = 0; i + 1 < v.size(); ++i) products.push_back(v[i] * v[i + 1]);
  CHECK(std::abs(mean_power(products, 1)) < 5e-3);
  CHECK(largest(v) < 7);
}

TEST_CASE("random numbers depend on key and position alone") {
  check_position_only([](std::int64_t n, PhiloxKey key) { return uniform<float>(n, key); });
  check_position_only([](std::int64_t n, PhiloxKey key) { return normal<float>(n, key); });
  check_position_only(
      [](std::int64_t n, PhiloxKey key) { return dropout(Values(static_cast<std::size_t>(n), 1), 0.3, key); });
}

TEST_CASE("seed and stream choose different numbers") {
  PhiloxKey other_seed = kKey, other_stream = kKey;
  ++other_seed.seed;
  ++other_stream.stream;
  CHECK(uniform<float>(100, other_seed) != uniform<float>(100, kKey));
  CHECK(uniform<float>(100, other_stream) != uniform<float>(100, kKey));
}

TEST_CASE("dropout keeps exactly the elements whose uniform number reaches p and scales them") {
  const Values x = random_values(10'007, 1);
  // 0.5 and 3/2^24 are numbers that the comparison meets exactly
  for (const double p : {0.0, 0.1, 0.5, 3 * 0x1p-24, 0.9}) {
    const Values y = dropout(x, p, kKey);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const bool kept = static_cast<double>(philox_uniform(word(kKey, i))) >= p;
      CHECK(y[i] == doctest::Approx(kept ? x[i] / (1 - p) : 0).epsilon(1e-6));
    }
  }
  CHECK(dropout(x, 0, kKey) == x);
  CHECK(dropout(x, 1, kKey) == Values(x.size(), 0));
}

TEST_CASE("dropout works in place and in f64") {
  const Values x = random_values(1000, 2);
  const Tensor t = tensor<double>(x, {1000}), out = unwritten<double>({1000});
  cpu().dropout(t, 0.25, kKey, {}, out);
  cpu().dropout(t, 0.25, kKey, {}, t);
  CHECK(values<double>(t) == values<double>(out));
  CHECK(error_of(values<double>(t), x) > 0.1);
}

TEST_CASE("dropout draws further on by what the device's counter says when it runs, forward and backward") {
  const Tensor advance = tensor<std::int64_t>({25}, {}), x = tensor<float>(Values(1000, 1), {1000}).requires_grad_();
  const auto drawn = [&](bool with_scope) {
    manual_seed(5);
    if (!with_scope) return dropout(x, 0.5);
    const RandomAdvanceScope scope(advance);
    return dropout(x, 0.5);
  };
  const Values plain = values<float>(drawn(false));
  const Tensor y = drawn(true);
  const Values later = values<float>(y);
  // An offset counts groups of four numbers.
  CHECK(Values(later.begin(), later.begin() + 900) == Values(plain.begin() + 100, plain.end()));
  y.backward(Tensor::ones({1000}));
  CHECK(values<float>(x.grad()) == later);
}
