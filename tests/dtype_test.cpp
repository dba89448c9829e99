#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "cuttle/dtype.hpp"
#include "support/formula.hpp"

using namespace cuttle;

namespace {

constexpr std::uint32_t kPatterns = 1u << 16;

/// A small float format by its definition: sign, exponent and mantissa bits, in double arithmetic.
struct Format {
  int exponent_bits, mantissa_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }

  double decode(std::uint32_t pattern) const {
    const int exponent = static_cast<int>(pattern >> mantissa_bits) & ((1 << exponent_bits) - 1);
    const double mantissa = pattern & ((1u << mantissa_bits) - 1);
    const double sign = pattern >> 15 ? -1 : 1;
    if (exponent == (1 << exponent_bits) - 1) {
      return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
    }
    if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias() - mantissa_bits);
    return sign * std::ldexp(mantissa + std::ldexp(1.0, mantissa_bits), exponent - bias() - mantissa_bits);
  }

  /// The nearest representable value, ties to even; infinite where rounding with unbounded exponents gets too large.
  double round(double value) const {
    if (!std::isfinite(value) || value == 0) return value;
    const int exponent = std::max(std::ilogb(value), 1 - bias());
    const double quantum = std::ldexp(1.0, exponent - mantissa_bits);
    const double rounded = std::nearbyint(value / quantum) * quantum;
    const double limit = std::ldexp(1.0, bias() + 1);
    return std::abs(rounded) >= limit ? std::copysign(std::numeric_limits<double>::infinity(), value) : rounded;
  }
};

constexpr Format kHalf{5, 10}, kBrain{8, 7};

template <class T> T from_bits(std::uint32_t bits) {
  T value;
  value.bits = static_cast<std::uint16_t>(bits);
  return value;
}

bool same(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b && std::signbit(a) == std::signbit(b);
}

template <class T> int wrongly_decoded(const Format& format) {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < kPatterns; ++bits) {
    wrong += !same(static_cast<double>(static_cast<float>(from_bits<T>(bits))), format.decode(bits));
  }
  return wrong;
}

template <class T> int changed_by_a_round_trip() {
  int changed = 0;
  for (std::uint32_t bits = 0; bits < kPatterns; ++bits) {
    const float value = static_cast<float>(from_bits<T>(bits));
    const T back(value);
    changed += std::isnan(value) ? !std::isnan(static_cast<float>(back)) : back.bits != bits;
  }
  return changed;
}

template <class T> bool rounds_right(const Format& format, float value) {
  return same(static_cast<double>(static_cast<float>(T(value))), format.round(static_cast<double>(value)));
}

/// Each pattern's value, the tie between it and the next, and the floats on either side of both.
template <class T> int wrongly_rounded_near_patterns(const Format& format) {
  int wrong = 0;
  for (std::uint32_t bits = 0; bits < kPatterns; ++bits) {
    const double value = format.decode(bits), next = format.decode((bits & 0x8000u) | ((bits + 1) & 0x7fffu));
    if (!std::isfinite(value)) continue;
    const double above = std::isfinite(next) ? next : std::copysign(std::ldexp(1.0, format.bias() + 1), value);
    for (const double centre : {value, (value + above) / 2}) {
      const auto f = static_cast<float>(centre);
      for (const float tried : {f, std::nextafterf(f, INFINITY), std::nextafterf(f, -INFINITY)}) {
        wrong += !rounds_right<T>(format, tried);
      }
    }
  }
  return wrong;
}

template <class T> int wrongly_rounded_anywhere(const Format& format) {
  int wrong = 0;
  for (std::uint64_t i = 1; i <= 1'000'000; ++i) {
    wrong += !rounds_right<T>(format, std::bit_cast<float>(static_cast<std::uint32_t>(testing::mix(i, 5))));
  }
  return wrong;
}

}  // namespace

TEST_CASE("every half pattern decodes to the value that its bits define") { CHECK(wrongly_decoded<Half>(kHalf) == 0); }
TEST_CASE("every bfloat16 pattern decodes to the value that its bits define") {
  CHECK(wrongly_decoded<BFloat16>(kBrain) == 0);
}

TEST_CASE("every half and bfloat16 pattern survives a round trip through float") {
  CHECK(changed_by_a_round_trip<Half>() == 0);
  CHECK(changed_by_a_round_trip<BFloat16>() == 0);
}

TEST_CASE("floats round to the nearest half, ties to even") {
  CHECK(wrongly_rounded_near_patterns<Half>(kHalf) == 0);
  CHECK(wrongly_rounded_anywhere<Half>(kHalf) == 0);
}

TEST_CASE("floats round to the nearest bfloat16, ties to even") {
  CHECK(wrongly_rounded_near_patterns<BFloat16>(kBrain) == 0);
  CHECK(wrongly_rounded_anywhere<BFloat16>(kBrain) == 0);
}

TEST_CASE("a NaN whose payload lies in the dropped bits stays a NaN") {
  for (const std::uint32_t bits : {0x7f800001u, 0xff800001u, 0x7fffffffu, 0x7f801000u}) {
    const auto value = std::bit_cast<float>(bits);
    CHECK(std::isnan(static_cast<float>(Half(value))));
    CHECK(std::isnan(static_cast<float>(BFloat16(value))));
    CHECK((Half(value).bits >> 15) == bits >> 31);
    CHECK((BFloat16(value).bits >> 15) == bits >> 31);
  }
}
