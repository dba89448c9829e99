#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "cuttle/autograd.hpp"
#include "support/formula.hpp"

namespace cuttle::testing {

using DifferentiableFunction = std::function<Tensor(const std::vector<Tensor>&)>;

struct GradcheckOptions {
  double step = 1e-5;
  /// Of central differences in f64: error of order step^2 from the third derivative, 1e-16/step from rounding.
  double tolerance = 1e-7;
  std::int64_t elements = 40;  ///< of each input that are tried, picked by hash where there are more
};

/// Sum of f(inputs) * direction in f64, without history.
inline double directed_value(const DifferentiableFunction& f, const std::vector<Tensor>& inputs,
                             const std::vector<double>& direction) {
  NoGrad no_grad;
  const std::vector<double> values = f(inputs).to_vector<double>();
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) sum += values[i] * direction[i];
  return sum;
}

/// Compares the gradients of f with central differences, at every input that asks for a gradient (f64 leaves). f must
/// be a pure function of the values of its inputs. Returns what is wrong, or an empty string.
inline std::string gradcheck(const DifferentiableFunction& f, std::vector<Tensor> inputs,
                             GradcheckOptions options = {}) {
  const Tensor output = f(inputs);
  const std::vector<double> direction = formula_values(output.numel(), {.seed = 4242});
  output.backward(tensor_from(direction, output.shape(), output.options()));

  for (std::size_t k = 0; k < inputs.size(); ++k) {
    if (!inputs[k].requires_grad()) continue;
    if (!inputs[k].grad().defined()) return "input " + std::to_string(k) + " got no gradient";
    const std::vector<double> gradient = inputs[k].grad().to_vector<double>();
    const std::vector<double> at = inputs[k].to_vector<double>();
    const std::int64_t count = inputs[k].numel(), tried = std::min(count, options.elements);
    double scale = 1;
    for (const double g : gradient) scale = std::max(scale, std::abs(g));

    for (std::int64_t n = 1; n <= tried; ++n) {
      const std::uint64_t pick = tried == count
                                     ? static_cast<std::uint64_t>(n - 1)
                                     : mix(static_cast<std::uint64_t>(n), 77) % static_cast<std::uint64_t>(count);
      const auto i = static_cast<std::size_t>(pick);
      double side[2];
      for (const int sign : {0, 1}) {
        std::vector<double> moved = at;
        moved[i] += sign == 1 ? options.step : -options.step;
        std::vector<Tensor> there = inputs;
        there[k] = Tensor::from(moved, inputs[k].shape(), inputs[k].options());
        side[sign] = directed_value(f, there, direction);
      }
      const double slope = (side[1] - side[0]) / (2 * options.step);
      if (!(std::abs(slope - gradient[i]) <= options.tolerance * scale)) {
        return "input " + std::to_string(k) + ", element " + std::to_string(i) + ": gradient " +
               std::to_string(gradient[i]) + ", finite difference " + std::to_string(slope);
      }
    }
  }
  return {};
}

}  // namespace cuttle::testing
