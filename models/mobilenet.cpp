#include <vector>

#include "zoo.hpp"

/// MobileNetV2: Sandler et al., "MobileNetV2: inverted residuals and linear bottlenecks", 2018. Structure, names and
/// initialisation are torchvision's, so that its weights load.
namespace cuttle::models {
namespace {

using nn::BatchNorm2d, nn::Conv2d, nn::Linear, nn::Module, nn::Sequential;

/// Convolution, batch norm, ReLU6.
class ConvNorm : public Module {
 public:
  ConvNorm(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride, std::int64_t groups = 1)
      : conv_(in, out,
              {.kernel = kernel, .stride = stride, .padding = (kernel - 1) / 2, .groups = groups, .bias = false}),
        norm_(out) {
    add("0", conv_);
    add("1", norm_);
  }
  Tensor forward(const Tensor& x) override { return norm_.relu6(conv_(x)); }
  std::string kind() const override { return "Conv2dNormActivation"; }

 private:
  Conv2d conv_;
  BatchNorm2d norm_;
};

/// 1x1 up to `widen` times as many channels, 3x3 on each alone, 1x1 down without an activation, and the input added
/// where it fits.
class InvertedResidual : public Module {
 public:
  InvertedResidual(std::int64_t in, std::int64_t out, std::int64_t stride, std::int64_t widen)
      : residual_(stride == 1 && in == out) {
    const std::int64_t wide = in * widen;
    if (widen != 1) steps_.push_back(&layers_.emplace<ConvNorm>(in, wide, 1, 1));
    steps_.push_back(&layers_.emplace<ConvNorm>(wide, wide, 3, stride, wide));
    project_ = &layers_.emplace<Conv2d>(wide, out, nn::Conv2dOptions{.kernel = 1, .bias = false});
    norm_ = &layers_.emplace<BatchNorm2d>(out);
    add("conv", layers_);
  }
  Tensor forward(const Tensor& x) override {
    Tensor h = x;
    for (ConvNorm* step : steps_) h = (*step)(h);
    h = (*project_)(h);
    return residual_ ? norm_->add(h, x) : (*norm_)(h);
  }
  std::string kind() const override { return "InvertedResidual"; }

 private:
  bool residual_;
  Sequential layers_;  // owns them all
  std::vector<ConvNorm*> steps_;
  Conv2d* project_;
  BatchNorm2d* norm_;
};

struct Group {
  std::int64_t widen, out, blocks, stride;
};
constexpr Group kGroups[] = {{1, 16, 1, 1}, {6, 24, 2, 2},  {6, 32, 3, 2}, {6, 64, 4, 2},
                             {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}};
constexpr std::int64_t kLast = 1280;

class MobileNetV2 : public Module {
 public:
  MobileNetV2(std::int64_t channels, std::int64_t classes)
      : classifier_(std::make_unique<nn::Dropout>(0.2), std::make_unique<Linear>(kLast, classes)) {
    features_.emplace<ConvNorm>(channels, 32, 3, 2);
    std::int64_t in = 32;
    for (const Group& group : kGroups) {
      for (std::int64_t b = 0; b < group.blocks; ++b) {
        features_.emplace<InvertedResidual>(in, group.out, b == 0 ? group.stride : 1, group.widen);
        in = group.out;
      }
    }
    features_.emplace<ConvNorm>(in, kLast, 1, 1);
    add("features", features_);
    add("classifier", classifier_);
    for (const auto& [name, module] : named_modules()) {
      if (auto* conv = dynamic_cast<Conv2d*>(module)) nn::init::kaiming_normal_(conv->weight, 0, nn::init::Fan::out);
      if (auto* fc = dynamic_cast<Linear*>(module)) {
        nn::init::normal_(fc->weight, 0, 0.01);
        nn::init::constant_(fc->bias, 0);
      }
    }
  }
  Tensor forward(const Tensor& x) override { return classifier_(flatten(global_avg_pool2d(features_(x)))); }
  std::string kind() const override { return "MobileNetV2"; }

 private:
  Sequential features_, classifier_;
};

}  // namespace

// Global pooling takes any size of image, so the size plays no part.

Model mobilenet_v2(std::int64_t channels, std::int64_t, std::int64_t classes) {
  return std::make_unique<MobileNetV2>(channels, classes);
}

}  // namespace cuttle::models
