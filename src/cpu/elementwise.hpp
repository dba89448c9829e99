#pragma once
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "cpu/parallel.hpp"
#include "cuttle/tensor.hpp"

namespace cuttle::cpu {

/// Elements a thread must get to be worth waking.
inline constexpr std::int64_t kElementGrain = 1 << 14;

/// The same for rows of `row` elements.
constexpr std::int64_t row_grain(std::int64_t row) {
  return std::max<std::int64_t>(1, kElementGrain / std::max<std::int64_t>(row, 1));
}

/// out[i] = f(x[i]); out may be x. The loop in place is apart because the compiler vectorises the other one only for
/// arrays that do not overlap.
template <class T, class F> void map(const T* x, T* out, std::int64_t n, F f) {
  parallel_for(n, kElementGrain, [=](std::int64_t begin, std::int64_t end) {
    if (x == out) {
      for (std::int64_t i = begin; i < end; ++i) out[i] = f(out[i]);
    } else {
      for (std::int64_t i = begin; i < end; ++i) out[i] = f(x[i]);
    }
  });
}

/// out[i] = f(a[i], b[i]); out may be a or b.
template <class T, class F> void map(const T* a, const T* b, T* out, std::int64_t n, F f) {
  parallel_for(n, kElementGrain, [=](std::int64_t begin, std::int64_t end) {
    if (a == out) {
      for (std::int64_t i = begin; i < end; ++i) out[i] = f(out[i], b[i]);
    } else if (b == out) {
      for (std::int64_t i = begin; i < end; ++i) out[i] = f(a[i], out[i]);
    } else {
      for (std::int64_t i = begin; i < end; ++i) out[i] = f(a[i], b[i]);
    }
  });
}

/// Sum of part(begin, end) over blocks of [0, n) of `block` elements. The blocks depend on n alone and are added in
/// order, so the result is the same for every number of threads.
template <class Part> double sum_blocks(std::int64_t n, std::int64_t block, Part part) {
  std::vector<double> sums(static_cast<std::size_t>((n + block - 1) / block));
  parallel_for(static_cast<std::int64_t>(sums.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      sums[static_cast<std::size_t>(b)] = part(b * block, std::min(n, (b + 1) * block));
    }
  });
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

/// Sum of term(x[i]) in double.
template <class T, class Term> double sum_terms(const T* x, std::int64_t n, Term term) {
  return sum_blocks(n, kElementGrain, [=](std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t kLanes = 16;  // sums side by side fill vector registers and hide the latency of an addition
    double lanes[kLanes] = {};
    std::int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (std::int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += term(static_cast<double>(x[i + lane]));
    }
    for (; i < end; ++i) lanes[i % kLanes] += term(static_cast<double>(x[i]));
    return std::accumulate(lanes, lanes + kLanes, 0.0);
  });
}

/// Copies between any two dtypes and layouts; the slot `convert`.
void convert(const Tensor& in, const Tensor& out);
// The slots of these names.
void relu(const Tensor& x, double ceiling, const Tensor& out);
void relu_backward(const Tensor& y, const Tensor& dy, double ceiling, const Tensor& dx);
void normalize_images(const Tensor& images, const Tensor& mean, const Tensor& stddev, const Tensor& windows,
                      const Tensor& out);

}  // namespace cuttle::cpu
