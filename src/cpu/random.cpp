#include <array>
#include <cmath>
#include <numbers>

#include "cpu/dispatch.hpp"
#include "cpu/elementwise.hpp"
#include "cpu/register.hpp"
#include "kernels.hpp"

namespace cuttle::cpu {
namespace {

/// Calls body(i, words) for each group of four elements i..i+3, the last of which may be cut short by n.
template <class Body> void for_groups(std::int64_t n, PhiloxKey key, Body body) {
  parallel_for((n + 3) / 4, kElementGrain / 4, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t g = begin; g < end; ++g) {
      body(4 * g, philox4x32(key.seed, key.stream, key.offset + static_cast<std::uint64_t>(g)));
    }
  });
}

/// out[i] is value[i % 4] of what values(words) makes of its group.
template <class T, class Values> void generate(T* out, std::int64_t n, PhiloxKey key, Values values) {
  for_groups(n, key, [=](std::int64_t i, const std::array<std::uint32_t, 4>& words) {
    const std::array<double, 4> group = values(words);
    for (std::int64_t j = 0; j < std::min<std::int64_t>(4, n - i); ++j) {
      out[i + j] = static_cast<T>(group[static_cast<std::size_t>(j)]);
    }
  });
}

void uniform(const Tensor& out, PhiloxKey key, double low, double high) {
  dispatch_floating("uniform", out, [&]<class T>(T) {
    generate(writable<T>(out), out.numel(), key, [=](const std::array<std::uint32_t, 4>& words) {
      std::array<double, 4> values;
      for (std::size_t j = 0; j < 4; ++j) {
        values[j] = std::fma(high - low, static_cast<double>(philox_uniform(words[j])), low);
      }
      return values;
    });
  });
}

void normal(const Tensor& out, PhiloxKey key, double mean, double stddev) {
  dispatch_floating("normal", out, [&]<class T>(T) {
    generate(writable<T>(out), out.numel(), key, [=](const std::array<std::uint32_t, 4>& words) {
      std::array<double, 4> values;
      for (std::size_t j = 0; j < 4; j += 2) {
        const double radius = std::sqrt(-2 * std::log((words[j] + 1.0) * 0x1p-32));
        const double angle = 2 * std::numbers::pi * (words[j + 1] * 0x1p-32);
        values[j] = std::fma(stddev, radius * std::cos(angle), mean);
        values[j + 1] = std::fma(stddev, radius * std::sin(angle), mean);
      }
      return values;
    });
  });
}

void dropout(const Tensor& x, double p, PhiloxKey key, const Tensor& out) {
  // philox_uniform(word) >= p without rounding: its value is (word >> 8) / 2^24
  const auto threshold = static_cast<std::uint32_t>(std::ceil(p * 0x1p24));
  dispatch_floating("dropout", x, [&]<class T>(T) {
    const T* from = x.data<T>();
    T* to = writable<T>(out);
    const std::int64_t n = out.numel();
    const T factor = static_cast<T>(1 / (1 - p));
    for_groups(n, key, [=](std::int64_t i, const std::array<std::uint32_t, 4>& words) {
      for (std::int64_t j = 0; j < std::min<std::int64_t>(4, n - i); ++j) {
        const bool kept = (words[static_cast<std::size_t>(j)] >> 8) >= threshold;
        to[i + j] = kept ? from[i + j] * factor : T{0};
      }
    });
  });
}

}  // namespace

void register_random(Kernels& k) {
  k.uniform = uniform;
  k.normal = normal;
  k.dropout = dropout;
}

}  // namespace cuttle::cpu
