#include <fmt/format.h>

#include <cmath>

#include "cuttle/error.hpp"
#include "cuttle/nn.hpp"
#include "ops/norm.hpp"

namespace cuttle::nn {
namespace {

void require_at_least(std::int64_t least, std::int64_t value, const std::string& layer, const char* what) {
  if (value >= least) return;
  throw ShapeError(fmt::format("{}: {} = {} must be at least {}", layer, what, value, least));
}

void require_at_least(std::int64_t least, Size2 value, const std::string& layer, const char* what) {
  if (value.h >= least && value.w >= least) return;
  throw ShapeError(fmt::format("{}: {} = {}x{} must be at least {}", layer, what, value.h, value.w, least));
}

void require_whole_groups(std::int64_t channels, std::int64_t groups, const std::string& layer, const char* what) {
  if (channels % groups == 0) return;
  throw ShapeError(fmt::format("{}: {} {} channels do not divide into {} groups: {} = {}*{} + {}", layer, channels,
                               what, groups, channels, groups, channels / groups, channels % groups),
                   "take a number of groups that divides the channels on both sides");
}

void check_conv(std::int64_t in, std::int64_t out, const Conv2dOptions& o) {
  const std::string layer = fmt::format("Conv2d({}, {})", in, out);
  require_at_least(1, in, layer, "input channels");
  require_at_least(1, out, layer, "output channels");
  require_at_least(1, o.kernel, layer, "kernel");
  require_at_least(1, o.stride, layer, "stride");
  require_at_least(0, o.padding, layer, "padding");
  require_at_least(1, o.dilation, layer, "dilation");
  require_at_least(1, o.groups, layer, "groups");
  require_whole_groups(in, o.groups, layer, "input");
  require_whole_groups(out, o.groups, layer, "output");
}

Pool2dOptions checked_pool(const std::string& layer, const Pool2dOptions& o) {
  require_at_least(1, o.kernel, layer, "kernel");
  require_at_least(0, o.stride, layer, "stride");
  require_at_least(0, o.padding, layer, "padding");
  require_at_least(1, o.dilation, layer, "dilation");
  if (2 * o.padding.h > o.kernel.h || 2 * o.padding.w > o.kernel.w) {
    throw ShapeError(fmt::format("{}: padding {}x{} is more than half the kernel {}x{}", layer, o.padding.h,
                                 o.padding.w, o.kernel.h, o.kernel.w),
                     "a window could lie in the padding alone: enlarge the kernel or pad less");
  }
  return o;
}

/// PyTorch draws biases within 1/sqrt(fan-in) of the layer's weight.
void init_bias(const Tensor& bias, std::int64_t fan_in) {
  const double bound = 1.0 / std::sqrt(static_cast<double>(fan_in));
  init::uniform_(bias, -bound, bound);
}

}  // namespace

Conv2d::Conv2d(std::int64_t in, std::int64_t out, Conv2dOptions options) : options_(options) {
  check_conv(in, out, options);
  set_algorithms(options.algorithms);
  const std::int64_t group_in = in / options.groups;
  weight = Tensor::empty({out, group_in, options.kernel.h, options.kernel.w});
  init::kaiming_uniform_(weight, std::sqrt(5.0));
  add_parameter("weight", weight);
  if (!options.bias) return;
  bias = Tensor::empty({out});
  init_bias(bias, group_in * options.kernel.h * options.kernel.w);
  add_parameter("bias", bias);
}

void Conv2d::set_algorithms(ConvAlgorithms wanted, std::string layer) {
  choice_ = std::make_shared<ConvChoice>(wanted, std::move(layer));
  options_.algorithms = std::move(wanted);
}

Tensor Conv2d::convolve(const Tensor& x, const Activation& then) {
  return conv2d(x, weight, bias,
                {.stride = options_.stride,
                 .padding = options_.padding,
                 .dilation = options_.dilation,
                 .groups = options_.groups,
                 .choice = choice_},
                then);
}

Tensor Conv2d::forward(const Tensor& x) { return convolve(x, {}); }

Tensor Conv2d::relu(const Tensor& x) { return observed(convolve(x, {.relu = true})); }

Linear::Linear(std::int64_t in, std::int64_t out, LinearOptions options) {
  const std::string layer = fmt::format("Linear({}, {})", in, out);
  require_at_least(1, in, layer, "input features");
  require_at_least(1, out, layer, "output features");
  weight = Tensor::empty({out, in});
  init::kaiming_uniform_(weight, std::sqrt(5.0));
  add_parameter("weight", weight);
  if (!options.bias) return;
  bias = Tensor::empty({out});
  init_bias(bias, in);
  add_parameter("bias", bias);
}

Tensor Linear::forward(const Tensor& x) { return linear(x, weight, bias); }

Tensor Linear::relu(const Tensor& x) { return observed(linear(x, weight, bias, {.relu = true})); }

BatchNorm2d::BatchNorm2d(std::int64_t channels, BatchNorm2dOptions options) : options_(options) {
  const std::string layer = fmt::format("BatchNorm2d({})", channels);
  require_at_least(1, channels, layer, "channels");
  if (!(options.eps > 0)) throw UsageError(fmt::format("{}: eps = {} must be above 0", layer, options.eps));
  if (!(options.momentum >= 0 && options.momentum <= 1)) {
    throw UsageError(fmt::format("{}: momentum = {} is outside [0,1]", layer, options.momentum),
                     "it is the weight of the new batch in the running statistics");
  }
  weight = Tensor::ones({channels});
  bias = Tensor::zeros({channels});
  running_mean = Tensor::zeros({channels});
  running_var = Tensor::ones({channels});
  num_batches_tracked = Tensor::zeros({}, {.dtype = DType::i64});
  add_parameter("weight", weight);
  add_parameter("bias", bias);
  add_buffer("running_mean", running_mean);
  add_buffer("running_var", running_var);
  add_buffer("num_batches_tracked", num_batches_tracked);
}

Tensor BatchNorm2d::normalize(const Tensor& x, const Activation& then) {
  return ops::batch_norm2d(x, weight, bias, running_mean, running_var, num_batches_tracked,
                           {.training = training(), .momentum = options_.momentum, .eps = options_.eps}, then);
}

Tensor BatchNorm2d::forward(const Tensor& x) { return normalize(x, {}); }

Tensor BatchNorm2d::relu(const Tensor& x) { return observed(normalize(x, {.relu = true})); }

Tensor BatchNorm2d::relu6(const Tensor& x) { return observed(normalize(x, {.relu = true, .ceiling = 6})); }

Tensor BatchNorm2d::add(const Tensor& x, const Tensor& residual) {
  return observed(normalize(x, {.residual = residual}));
}

Tensor BatchNorm2d::add_relu(const Tensor& x, const Tensor& residual) {
  return observed(normalize(x, {.residual = residual, .relu = true}));
}

Tensor ReLU::forward(const Tensor& x) { return options_.inplace ? relu_(x) : relu(x); }

Tensor ReLU6::forward(const Tensor& x) { return options_.inplace ? relu6_(x) : relu6(x); }

Dropout::Dropout(double p) : p_(p) {
  if (!(p >= 0 && p <= 1)) {
    throw UsageError(fmt::format("Dropout: p = {} is outside [0,1]", p), "it is the probability of zeroing an element");
  }
}

Tensor Dropout::forward(const Tensor& x) { return dropout(x, p_, training()); }

MaxPool2d::MaxPool2d(Pool2dOptions options) : options_(checked_pool("MaxPool2d", options)) {}

Tensor MaxPool2d::forward(const Tensor& x) { return max_pool2d(x, options_); }

AvgPool2d::AvgPool2d(Pool2dOptions options) : options_(checked_pool("AvgPool2d", options)) {
  if (options.dilation != Size2(1)) {
    throw UsageError(
        fmt::format("AvgPool2d: dilation = {}x{}, but only max pooling has it", options.dilation.h, options.dilation.w),
        "leave dilation at 1");
  }
}

Tensor AvgPool2d::forward(const Tensor& x) { return avg_pool2d(x, options_); }

AdaptiveAvgPool2d::AdaptiveAvgPool2d(Size2 output) : output_(output) {
  require_at_least(1, output, "AdaptiveAvgPool2d", "output");
}

Tensor AdaptiveAvgPool2d::forward(const Tensor& x) { return adaptive_avg_pool2d(x, output_); }

Tensor Flatten::forward(const Tensor& x) { return flatten(x); }

}  // namespace cuttle::nn
