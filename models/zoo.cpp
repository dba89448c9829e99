#include "zoo.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cuttle/error.hpp"
#include "cuttle/models.hpp"

namespace cuttle::models {

const std::vector<ModelInfo>& zoo() {
  static const std::vector<ModelInfo> table = {
      // name, input channels, input size, classes
      {"lenet", 1, 28, 10, lenet},
      {"resnet18", 3, 224, 1000, resnet18},
      {"resnet34", 3, 224, 1000, resnet34},
      {"resnet50", 3, 224, 1000, resnet50},
      {"resnet18_cifar", 3, 32, 10, resnet18_cifar},
      {"vgg11_bn", 3, 224, 1000, vgg11_bn},
      {"vgg13_bn", 3, 224, 1000, vgg13_bn},
      {"vgg16_bn", 3, 224, 1000, vgg16_bn},
      {"mobilenet_v2", 3, 224, 1000, mobilenet_v2},
  };
  return table;
}

const ModelInfo& find(std::string_view name) {
  std::vector<std::string_view> names;
  for (const ModelInfo& info : zoo()) {
    if (info.name == name) return info;
    names.push_back(info.name);
  }
  throw UsageError(fmt::format("there is no model '{}'", name), fmt::format("models are {}", fmt::join(names, ", ")));
}

}  // namespace cuttle::models
