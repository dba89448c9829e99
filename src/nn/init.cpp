#include <fmt/format.h>

#include <cmath>

#include "autograd/node.hpp"
#include "cuttle/error.hpp"
#include "cuttle/nn.hpp"
#include "kernels.hpp"

namespace cuttle::nn::init {
namespace {

void check_floating(const char* op, const Tensor& t) {
  if (!is_floating(t.dtype())) throw DtypeError(fmt::format("{}: {} is not of a floating dtype", op, t.str()));
}

/// Standard deviation that keeps the variance of a layer's outputs (or gradients) equal to that of its inputs.
double kaiming_stddev(const char* op, const Tensor& t, double negative_slope, Fan fan) {
  if (t.rank() < 2) {
    throw ShapeError(fmt::format("{}: {} has no fan-in and fan-out, which need at least 2 dimensions", op, t.str()),
                     "initialise biases and norms with constant_ or uniform_");
  }
  std::int64_t connections = t.size(fan == Fan::in ? 1 : 0);
  for (int d = 2; d < t.rank(); ++d) connections *= t.size(d);
  return std::sqrt(2.0 / ((1.0 + negative_slope * negative_slope) * static_cast<double>(connections)));
}

}  // namespace

void uniform_(Tensor t, double low, double high) {
  check_floating("uniform_", t);
  if (t.numel() == 0) return;
  kernels(t).uniform(t, init_generator().reserve(t.numel()), low, high);
  autograd::mark_changed("uniform_", t);
}

void normal_(Tensor t, double mean, double stddev) {
  check_floating("normal_", t);
  if (t.numel() == 0) return;
  kernels(t).normal(t, init_generator().reserve(t.numel()), mean, stddev);
  autograd::mark_changed("normal_", t);
}

void constant_(Tensor t, double value) {
  const NoGrad no_grad;
  t.fill_(value);
}

void kaiming_uniform_(Tensor t, double negative_slope, Fan fan) {
  const double bound = std::sqrt(3.0) * kaiming_stddev("kaiming_uniform_", t, negative_slope, fan);
  uniform_(std::move(t), -bound, bound);
}

void kaiming_normal_(Tensor t, double negative_slope, Fan fan) {
  const double stddev = kaiming_stddev("kaiming_normal_", t, negative_slope, fan);
  normal_(std::move(t), 0, stddev);
}

}  // namespace cuttle::nn::init
