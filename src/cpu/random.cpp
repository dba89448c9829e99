#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "cpu/dispatch.hpp"
#include "cpu/elementwise.hpp"
#include "cpu/register.hpp"
#include "kernels.hpp"

namespace cuttle::cpu {
namespace {

constexpr std::int64_t kBlock = 64;
using Words = std::array<std::uint32_t, kBlock>;

/// The words of elements 64*block..., four for each counter. Many counters at once, lane by lane, so that the compiler
/// makes vectors of them.
void draw(PhiloxKey key, std::int64_t block, Words& words) {
  constexpr std::int64_t kLanes = kBlock / 4;
  const std::uint64_t first = key.offset + static_cast<std::uint64_t>(block * kLanes);
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    const std::array<std::uint32_t, 4> group = philox4x32(key.seed, key.stream, first + lane);
    for (std::size_t j = 0; j < 4; ++j) words[4 * lane + j] = group[j];
  }
}

/// Calls body(i, words, count) for elements i..i+count.
template <class Body> void for_blocks(std::int64_t n, PhiloxKey key, Body body) {
  parallel_for((n + kBlock - 1) / kBlock, kElementGrain / kBlock, [=](std::int64_t begin, std::int64_t end) {
    Words words;
    for (std::int64_t block = begin; block < end; ++block) {
      draw(key, block, words);
      body(block * kBlock, words, static_cast<std::size_t>(std::min(kBlock, n - block * kBlock)));
    }
  });
}

void uniform(const Tensor& out, PhiloxKey key, double low, double high) {
  dispatch_floating("uniform", out, [&]<class T>(T) {
    T* to = writable<T>(out);
    for_blocks(out.numel(), key, [=](std::int64_t i, const Words& words, std::size_t count) {
      for (std::size_t j = 0; j < count; ++j) {
        to[i + static_cast<std::int64_t>(j)] =
            static_cast<T>(std::fma(high - low, static_cast<double>(philox_uniform(words[j])), low));
      }
    });
  });
}

void normal(const Tensor& out, PhiloxKey key, double mean, double stddev) {
  dispatch_floating("normal", out, [&]<class T>(T) {
    T* to = writable<T>(out);
    for_blocks(out.numel(), key, [=](std::int64_t i, const Words& words, std::size_t count) {
      std::array<T, kBlock> values;
      for (std::size_t j = 0; j < count; j += 2) {
        const double radius = std::sqrt(-2 * std::log((words[j] + 1.0) * 0x1p-32));
        const double angle = 2 * std::numbers::pi * (words[j + 1] * 0x1p-32);
        values[j] = static_cast<T>(std::fma(stddev, radius * std::cos(angle), mean));
        values[j + 1] = static_cast<T>(std::fma(stddev, radius * std::sin(angle), mean));
      }
      std::copy_n(values.begin(), count, to + i);
    });
  });
}

void dropout(const Tensor& x, double p, PhiloxKey key, const Tensor& advance, const Tensor& out) {
  if (advance.defined()) key.offset += static_cast<std::uint64_t>(*advance.data<std::int64_t>());
  // philox_uniform(word) >= p without rounding: its value is (word >> 8) / 2^24
  const auto threshold = static_cast<std::uint32_t>(std::ceil(p * 0x1p24));
  dispatch_floating("dropout", x, [&]<class T>(T) {
    const T* from = x.data<T>();
    T* to = writable<T>(out);
    // 1/0 would make NaN of the zeroes that p = 1 leaves
    const T factor = p < 1 ? static_cast<T>(1 / (1 - p)) : T{0};
    for_blocks(out.numel(), key, [=](std::int64_t i, const Words& words, std::size_t count) {
      for (std::size_t j = 0; j < count; ++j) {
        const T scaled = from[i + static_cast<std::int64_t>(j)] * factor;
        to[i + static_cast<std::int64_t>(j)] = (words[j] >> 8) >= threshold ? scaled : T{0};
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
