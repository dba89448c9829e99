#include <fmt/format.h>

#include <initializer_list>
#include <vector>

#include "cuttle/error.hpp"
#include "zoo.hpp"

/// VGG with batch norm: Simonyan & Zisserman, "Very deep convolutional networks for large-scale image recognition",
/// 2014; Ioffe & Szegedy, 2015. Names and initialisation are torchvision's, so that its weights load.
namespace cuttle::models {
namespace {

using nn::BatchNorm2d, nn::Conv2d, nn::Linear, nn::Module, nn::Sequential;

/// Filters of one 3x3 convolution after the other; 0 stands for a pooling by 2.
using Plan = std::initializer_list<std::int64_t>;

constexpr std::int64_t kPooled = 7;  // height and width that the classifier sees

class Vgg : public Module {
 public:
  Vgg(Plan plan, std::int64_t channels, std::int64_t classes)
      : fc1_(512 * kPooled * kPooled, 4096), fc2_(4096, 4096), fc3_(4096, classes) {
    // Every layer takes a number in `features`, also those that run within their neighbour.
    std::int64_t in = channels;
    for (const std::int64_t filters : plan) {
      if (filters == 0) {
        features_.emplace<nn::MaxPool2d>(Pool2dOptions{.kernel = 2});
        stages_.back().pooled = true;
        continue;
      }
      auto& conv = features_.emplace<Conv2d>(in, filters, nn::Conv2dOptions{.kernel = 3, .padding = 1});
      auto& norm = features_.emplace<BatchNorm2d>(filters);
      features_.emplace<nn::ReLU>();
      stages_.push_back({&conv, &norm});
      nn::init::kaiming_normal_(conv.weight, 0, nn::init::Fan::out);
      nn::init::constant_(conv.bias, 0);
      in = filters;
    }
    add("features", features_);
    classifier_.add_layers(fc1_, fc2_, fc3_);
    add("classifier", classifier_);
    for (Linear* fc : {&fc1_, &fc2_, &fc3_}) {
      nn::init::normal_(fc->weight, 0, 0.01);
      nn::init::constant_(fc->bias, 0);
    }
  }

  Tensor forward(const Tensor& x) override {
    Tensor h = x;
    for (const Stage& stage : stages_) {
      h = stage.norm->relu((*stage.conv)(h));
      if (stage.pooled) h = max_pool2d(h, {.kernel = 2});
    }
    h = flatten(adaptive_avg_pool2d(h, kPooled));
    h = dropout(relu_(fc1_(h)), 0.5, training());
    h = dropout(relu_(fc2_(h)), 0.5, training());
    return fc3_(h);
  }

  std::string kind() const override { return "VGG"; }

 private:
  /// Only names: forward() above runs the layers.
  struct Classifier : Module {
    void add_layers(Linear& fc1, Linear& fc2, Linear& fc3) {
      add("0", fc1);
      add("3", fc2);
      add("6", fc3);
    }
    Tensor forward(const Tensor& x) override { return x; }
  };
  struct Stage {
    Conv2d* conv;
    BatchNorm2d* norm;
    bool pooled = false;  ///< afterwards
  };

  Sequential features_;
  std::vector<Stage> stages_;
  Linear fc1_, fc2_, fc3_;
  Classifier classifier_;
};

Model make_vgg(const char* name, Plan plan, std::int64_t channels, std::int64_t size, std::int64_t classes) {
  if (size < 32) {
    throw ShapeError(
        fmt::format("{}: images of {}x{} are too small: after five poolings by 2 nothing is left", name, size, size),
        "take images of at least 32x32");
  }
  return std::make_unique<Vgg>(plan, channels, classes);
}

}  // namespace

Model vgg11_bn(std::int64_t channels, std::int64_t size, std::int64_t classes) {
  return make_vgg("vgg11_bn", {64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0}, channels, size, classes);
}

Model vgg13_bn(std::int64_t channels, std::int64_t size, std::int64_t classes) {
  return make_vgg("vgg13_bn", {64, 64, 0, 128, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0}, channels, size, classes);
}

Model vgg16_bn(std::int64_t channels, std::int64_t size, std::int64_t classes) {
  return make_vgg("vgg16_bn", {64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0}, channels,
                  size, classes);
}

}  // namespace cuttle::models
