#pragma once
#include <cmath>
#include <vector>

#include "cuttle/nn.hpp"

/// Weights and images that PyTorch and Cuttle compute from the same hash: the twin of tests/golden/resnet.py.
namespace cuttle::testing {

/// Values in [-0.5, 0.5), the same as in tests/golden/resnet.py.
inline Tensor hashed(std::uint32_t index, const Shape& shape) {
  std::vector<double> values(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::uint32_t h = (static_cast<std::uint32_t>(i) + 1) * 2654435761u ^ (index * 0x9E3779B9u);
    h ^= h >> 16;
    h *= 0x85EBCA6Bu;
    h ^= h >> 13;
    values[i] = h * 0x1p-32 - 0.5;
  }
  return Tensor::from(values, shape);
}

inline Tensor affine(double factor, const Tensor& u, double offset) {
  std::vector<double> values = u.to_vector<double>();
  for (double& v : values) v = factor * v + offset;
  return Tensor::from(values, u.shape());
}

/// Weights of a hash, with the spread of an initialisation.
inline void fill(nn::Module& model) {
  std::vector<nn::NamedTensor> state = model.state();
  for (std::uint32_t index = 0; index < state.size(); ++index) {
    auto& [name, t] = state[index];
    const Tensor u = hashed(index, t.shape());
    const bool positive = name.ends_with("weight") || name.ends_with("running_var");
    if (t.rank() > 1) {
      t = affine(std::sqrt(24.0 * static_cast<double>(t.size(0)) / static_cast<double>(t.numel())), u, 0);
    } else if (t.rank() == 1) {
      t = affine(0.4, u, positive ? 1 : 0);
    }
  }
  nn::load_state(model, state);
}

}  // namespace cuttle::testing
