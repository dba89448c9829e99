#include <array>

#include "zoo.hpp"

/// ResNets: He et al., "Deep residual learning for image recognition", 2015; names, strides (on the 3x3 of a
/// bottleneck) and initialisation are torchvision's, so that its weights load. ReLU, and the sum at the end of a block,
/// are computed by the batch norm before them.
namespace cuttle::models {
namespace {

using nn::BatchNorm2d, nn::Conv2d, nn::Linear, nn::Module, nn::Sequential;

std::unique_ptr<Conv2d> make_conv1x1(std::int64_t in, std::int64_t out, std::int64_t stride) {
  return std::make_unique<Conv2d>(in, out, nn::Conv2dOptions{.kernel = 1, .stride = stride, .bias = false});
}

/// The way around a block: the identity, or a projection where the block changes channels or size.
class Shortcut {
 public:
  Shortcut(std::int64_t in, std::int64_t out, std::int64_t stride) {
    if (in == out && stride == 1) return;
    projection_ = std::make_unique<Sequential>(make_conv1x1(in, out, stride), std::make_unique<BatchNorm2d>(out));
  }
  Sequential* projection() { return projection_.get(); }
  Tensor operator()(const Tensor& x) { return projection_ ? (*projection_)(x) : x; }

 private:
  std::unique_ptr<Sequential> projection_;
};

/// Two 3x3 convolutions.
class BasicBlock : public Module {
 public:
  static constexpr std::int64_t kExpansion = 1;

  BasicBlock(std::int64_t in, std::int64_t width, std::int64_t stride)
      : conv1_(in, width, {.kernel = 3, .stride = stride, .padding = 1, .bias = false}),
        conv2_(width, width, {.kernel = 3, .padding = 1, .bias = false}),
        bn1_(width),
        bn2_(width),
        shortcut_(in, width, stride) {
    add("conv1", conv1_);
    add("bn1", bn1_);
    add("conv2", conv2_);
    add("bn2", bn2_);
    if (shortcut_.projection()) add("downsample", *shortcut_.projection());
  }

  Tensor forward(const Tensor& x) override {
    const Tensor h = bn1_.relu(conv1_(x));
    return bn2_.add_relu(conv2_(h), shortcut_(x));
  }

  std::string kind() const override { return "BasicBlock"; }

 private:
  Conv2d conv1_, conv2_;
  BatchNorm2d bn1_, bn2_;
  Shortcut shortcut_;
};

/// 1x1 down to `width`, 3x3, 1x1 up to four times as much.
class Bottleneck : public Module {
 public:
  static constexpr std::int64_t kExpansion = 4;

  Bottleneck(std::int64_t in, std::int64_t width, std::int64_t stride)
      : conv1_(in, width, {.kernel = 1, .bias = false}),
        conv2_(width, width, {.kernel = 3, .stride = stride, .padding = 1, .bias = false}),
        conv3_(width, width * kExpansion, {.kernel = 1, .bias = false}),
        bn1_(width),
        bn2_(width),
        bn3_(width * kExpansion),
        shortcut_(in, width * kExpansion, stride) {
    add("conv1", conv1_);
    add("bn1", bn1_);
    add("conv2", conv2_);
    add("bn2", bn2_);
    add("conv3", conv3_);
    add("bn3", bn3_);
    if (shortcut_.projection()) add("downsample", *shortcut_.projection());
  }

  Tensor forward(const Tensor& x) override {
    Tensor h = bn1_.relu(conv1_(x));
    h = bn2_.relu(conv2_(h));
    return bn3_.add_relu(conv3_(h), shortcut_(x));
  }

  std::string kind() const override { return "Bottleneck"; }

 private:
  Conv2d conv1_, conv2_, conv3_;
  BatchNorm2d bn1_, bn2_, bn3_;
  Shortcut shortcut_;
};

enum class Stem { imagenet, cifar };  ///< 7x7 stride 2 and a pooling; 3x3 alone, for images of 32x32

nn::Conv2dOptions stem_options(Stem stem) {
  if (stem == Stem::cifar) return {.kernel = 3, .padding = 1, .bias = false};
  return {.kernel = 7, .stride = 2, .padding = 3, .bias = false};
}

template <class Block> class ResNet : public Module {
 public:
  ResNet(std::array<int, 4> blocks, Stem stem, std::int64_t channels, std::int64_t classes)
      : stem_(stem), conv1_(channels, 64, stem_options(stem)), bn1_(64), fc_(512 * Block::kExpansion, classes) {
    add("conv1", conv1_);
    add("bn1", bn1_);
    std::int64_t in = 64, width = 64;
    for (std::size_t i = 0; i < layers_.size(); ++i, width *= 2) {
      for (int b = 0; b < blocks[i]; ++b) {
        layers_[i].template emplace<Block>(in, width, i > 0 && b == 0 ? 2 : 1);
        in = width * Block::kExpansion;
      }
      add("layer" + std::to_string(i + 1), layers_[i]);
    }
    add("fc", fc_);
    for (const auto& [name, module] : named_modules()) {
      if (auto* conv = dynamic_cast<Conv2d*>(module)) nn::init::kaiming_normal_(conv->weight, 0, nn::init::Fan::out);
    }
  }

  Tensor forward(const Tensor& x) override {
    Tensor h = bn1_.relu(conv1_(x));
    if (stem_ == Stem::imagenet) h = max_pool2d(h, {.kernel = 3, .stride = 2, .padding = 1});
    for (Sequential& layer : layers_) h = layer(h);
    return fc_(flatten(global_avg_pool2d(h)));
  }

  std::string kind() const override { return "ResNet"; }

 private:
  Stem stem_;
  Conv2d conv1_;
  BatchNorm2d bn1_;
  std::array<Sequential, 4> layers_;
  Linear fc_;
};

}  // namespace

// Global pooling takes any size of image, so the size plays no part.

Model resnet18(std::int64_t channels, std::int64_t, std::int64_t classes) {
  return std::make_unique<ResNet<BasicBlock>>(std::array{2, 2, 2, 2}, Stem::imagenet, channels, classes);
}

Model resnet34(std::int64_t channels, std::int64_t, std::int64_t classes) {
  return std::make_unique<ResNet<BasicBlock>>(std::array{3, 4, 6, 3}, Stem::imagenet, channels, classes);
}

Model resnet50(std::int64_t channels, std::int64_t, std::int64_t classes) {
  return std::make_unique<ResNet<Bottleneck>>(std::array{3, 4, 6, 3}, Stem::imagenet, channels, classes);
}

Model resnet18_cifar(std::int64_t channels, std::int64_t, std::int64_t classes) {
  return std::make_unique<ResNet<BasicBlock>>(std::array{2, 2, 2, 2}, Stem::cifar, channels, classes);
}

}  // namespace cuttle::models
