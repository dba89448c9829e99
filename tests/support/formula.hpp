#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

#include "cuttle/tensor.hpp"

/// Test inputs by formula, the same as in tests/golden/formula.py, so that golden files hold results only.
namespace cuttle::testing {

/// splitmix64 of (seed, index): 64 well-mixed bits.
inline std::uint64_t mix(std::uint64_t index, std::uint64_t seed) {
  std::uint64_t z = index * 0x9E3779B97F4A7C15u + seed * 0xD1342543DE82EF95u;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
  return z ^ (z >> 31);
}

struct Formula {
  std::uint64_t seed = 0;
  double scale = 1, shift = 0;
  bool coarse = false;  ///< multiples of 1/4, so that equal values occur
};

/// Uniform in [-1,1) * scale + shift, every value exact in f32, in logical order.
inline std::vector<double> formula_values(std::int64_t count, const Formula& formula) {
  std::vector<double> values;
  values.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = 1; i <= count; ++i) {
    const std::uint64_t word = mix(static_cast<std::uint64_t>(i), formula.seed) >> 40;
    double uniform = static_cast<double>(word) * 0x1p-23 - 1;
    if (formula.coarse) uniform = std::floor(uniform * 4) / 4;
    values.push_back(static_cast<double>(static_cast<float>(uniform * formula.scale + formula.shift)));
  }
  return values;
}

/// Values in logical order as a tensor of options.dtype on options.device.
inline Tensor tensor_from(const std::vector<double>& values, const Shape& shape, TensorOptions options = {}) {
  const TensorOptions exact{.dtype = DType::f64, .layout = options.layout};
  return Tensor::from(values, shape, exact).to(options.dtype).to(options.device);
}

inline Tensor formula_tensor(const Shape& shape, const Formula& formula, TensorOptions options = {}) {
  return tensor_from(formula_values(shape.numel(), formula), shape, options);
}

inline Tensor formula_targets(std::int64_t count, std::int64_t classes, std::uint64_t seed) {
  std::vector<std::int64_t> values;
  for (std::int64_t i = 1; i <= count; ++i) {
    const std::uint64_t word = mix(static_cast<std::uint64_t>(i), seed);
    values.push_back(static_cast<std::int64_t>(word % static_cast<std::uint64_t>(classes)));
  }
  return Tensor::from(values, {count});
}

}  // namespace cuttle::testing
