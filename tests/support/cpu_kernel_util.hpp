#pragma once
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <type_traits>
#include <vector>

#include "cuttle/device.hpp"
#include "kernels.hpp"

/// Tensors from and to double in logical order, without the ops under test.
namespace cuttle::test {

using Values = std::vector<double>;
inline constexpr Layout kLayouts[] = {Layout::nhwc, Layout::nchw};

inline Kernels& cpu() { return backend(DeviceKind::cpu).kernels; }

/// Memory position of each element in logical order.
inline std::vector<std::size_t> memory_order(const Shape& shape, Layout layout) {
  std::vector<std::size_t> order;
  if (shape.rank() != 4 || layout == Layout::nchw) {
    for (std::int64_t i = 0; i < shape.numel(); ++i) order.push_back(static_cast<std::size_t>(i));
    return order;
  }
  for (std::int64_t n = 0; n < shape[0]; ++n)
    for (std::int64_t c = 0; c < shape[1]; ++c)
      for (std::int64_t h = 0; h < shape[2]; ++h)
        for (std::int64_t w = 0; w < shape[3]; ++w)
          order.push_back(static_cast<std::size_t>(((n * shape[2] + h) * shape[3] + w) * shape[1] + c));
  return order;
}

template <class T> Tensor tensor(const Values& values, const Shape& shape, Layout layout = Layout::nhwc) {
  Tensor t = Tensor::empty(shape, {dtype_of<T>, kCpu, layout});
  T* data = t.mutable_data<T>();
  const std::vector<std::size_t> order = memory_order(shape, layout);
  for (std::size_t i = 0; i < order.size(); ++i) data[order[i]] = static_cast<T>(values[i]);
  return t;
}

template <class T> double as_double(T value) {
  if constexpr (std::is_class_v<T>) {
    return static_cast<double>(static_cast<float>(value));
  } else {
    return static_cast<double>(value);
  }
}

template <class T> Values values(const Tensor& t) {
  Values result;
  for (const std::size_t at : memory_order(t.shape(), t.layout())) result.push_back(as_double(t.data<T>()[at]));
  return result;
}

/// A tensor full of a value that no result contains, so that elements left out show.
template <class T> Tensor unwritten(const Shape& shape, Layout layout = Layout::nhwc) {
  return tensor<T>(Values(static_cast<std::size_t>(shape.numel()), 77), shape, layout);
}

/// Normal numbers as f32, so that f32 and f64 tensors hold the same.
inline Values random_values(std::int64_t n, unsigned seed, double mean = 0, double stddev = 1) {
  std::mt19937 engine(seed);
  std::normal_distribution<double> normal(mean, stddev);
  Values result;
  for (std::int64_t i = 0; i < n; ++i) result.push_back(static_cast<double>(static_cast<float>(normal(engine))));
  return result;
}

inline double largest(const Values& v) {
  double most = 0;
  for (const double value : v) most = std::max(most, std::abs(value));
  return most;
}

/// Largest difference as a fraction of `scale`; NaN must meet NaN.
inline double error_of(const Values& actual, const Values& expected, double scale) {
  REQUIRE(actual.size() == expected.size());
  double worst = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(expected[i]) && std::isnan(actual[i])) continue;
    const double difference = actual[i] == expected[i] ? 0 : std::abs(actual[i] - expected[i]);
    if (!(difference <= worst)) worst = difference;
  }
  return worst == 0 ? 0 : worst / scale;
}

/// As a fraction of the largest expected value.
inline double error_of(const Values& actual, const Values& expected) {
  return error_of(actual, expected, largest(expected));
}

template <class T> constexpr double tolerance() { return sizeof(T) == 4 ? 2e-6 : 1e-13; }

/// Kernel threads for a scope.
class Threads {
 public:
  explicit Threads(int n) : before_(num_threads()) { set_num_threads(n); }
  ~Threads() { set_num_threads(before_); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

 private:
  int before_;
};

}  // namespace cuttle::test
