#pragma once
#include <cstdint>
#include <vector>

#include "cuttle/tensor.hpp"

namespace cuttle::testing {

using Floats = std::vector<float>;

/// A vector that asks for a gradient.
inline Tensor leaf(const Floats& values) {
  return Tensor::from(values, {static_cast<std::int64_t>(values.size())}).requires_grad_();
}

inline Floats grad_of(const Tensor& t) { return t.grad().to_vector<float>(); }

}  // namespace cuttle::testing
