#pragma once
#include <cmath>
#include <limits>
#include <vector>

#include "support/formula.hpp"

namespace cuttle::testing {

/// ||a - b|| / ||b||, or ||a|| where b is zero; infinite where the sizes differ or something is NaN.
inline double relative_error(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  const double error = norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

inline double relative_error(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape()) return std::numeric_limits<double>::infinity();
  return relative_error(a.to_vector<double>(), b.to_vector<double>());
}

/// The norm and 32 signed sums that stand for a large tensor in the golden files; see sketch() in formula.py.
inline std::vector<double> sketch_of(const std::vector<double>& values) {
  constexpr int kSums = 32;
  std::vector<double> sketch(1 + kSums, 0.0);
  double squares = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    squares += values[i] * values[i];
    const std::uint64_t signs = mix(i + 1, 0);
    for (int k = 0; k < kSums; ++k) {
      sketch[static_cast<std::size_t>(k + 1)] += (signs >> k) & 1 ? values[i] : -values[i];
    }
  }
  sketch[0] = std::sqrt(squares);
  return sketch;
}

/// Estimate of the relative error of `values` against a tensor of which only the sketch is known: the signed sums of
/// the difference have the norm of the difference as their root mean square.
inline double relative_error_to_sketch(const std::vector<double>& values, const std::vector<double>& sketch) {
  const std::vector<double> mine = sketch_of(values);
  double squares = 0;
  for (std::size_t k = 1; k < sketch.size(); ++k) squares += (mine[k] - sketch[k]) * (mine[k] - sketch[k]);
  const double difference = std::sqrt(squares / static_cast<double>(sketch.size() - 1));
  const double error = sketch[0] > 0 ? difference / sketch[0] : difference;
  return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

}  // namespace cuttle::testing
