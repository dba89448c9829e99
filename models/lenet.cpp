#include <fmt/format.h>

#include "cuttle/error.hpp"
#include "zoo.hpp"

/// LeNet in its present-day form: LeCun et al., "Gradient-based learning applied to document recognition", 1998, with
/// ReLU, max pooling and wider layers. 28x28 digits: 421,642 parameters.
namespace cuttle::models {
namespace {

/// Two poolings quarter the image; fc1 needs to know what is left.
std::int64_t quarter(std::int64_t size) {
  if (size < 4) {
    throw ShapeError(
        fmt::format("lenet: images of {0}x{0} are too small: after two poolings by 2 nothing is left", size),
        "take images of at least 4x4");
  }
  return size / 4;
}

class LeNet : public nn::Module {
 public:
  LeNet(std::int64_t channels, std::int64_t size, std::int64_t classes)
      : conv1_(channels, 32, {.kernel = 3, .padding = 1}),
        conv2_(32, 64, {.kernel = 3, .padding = 1}),
        fc1_(64 * quarter(size) * quarter(size), 128),
        fc2_(128, classes) {
    add("conv1", conv1_);
    add("conv2", conv2_);
    add("fc1", fc1_);
    add("fc2", fc2_);
  }

  Tensor forward(const Tensor& x) override {
    Tensor h = max_pool2d(conv1_.relu(x), {.kernel = 2});
    h = max_pool2d(conv2_.relu(h), {.kernel = 2});
    h = fc1_.relu(flatten(h));
    return fc2_(h);
  }

  std::string kind() const override { return "LeNet"; }

 private:
  nn::Conv2d conv1_, conv2_;
  nn::Linear fc1_, fc2_;
};

}  // namespace

Model lenet(std::int64_t channels, std::int64_t size, std::int64_t classes) {
  return std::make_unique<LeNet>(channels, size, classes);
}

}  // namespace cuttle::models
