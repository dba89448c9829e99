#pragma once
#include <cstdint>
#include <memory>

#include "cuttle/nn.hpp"

/// One builder a model; the table of zoo.cpp names them. Each takes the channels and height = width of its input, and
/// throws ShapeError where the model cannot take them.
namespace cuttle::models {

using Model = std::unique_ptr<nn::Module>;

Model lenet(std::int64_t channels, std::int64_t size, std::int64_t classes);
Model resnet18(std::int64_t channels, std::int64_t size, std::int64_t classes);
Model resnet34(std::int64_t channels, std::int64_t size, std::int64_t classes);
Model resnet50(std::int64_t channels, std::int64_t size, std::int64_t classes);
Model resnet18_cifar(std::int64_t channels, std::int64_t size, std::int64_t classes);
Model vgg11_bn(std::int64_t channels, std::int64_t size, std::int64_t classes);
Model vgg13_bn(std::int64_t channels, std::int64_t size, std::int64_t classes);
Model vgg16_bn(std::int64_t channels, std::int64_t size, std::int64_t classes);
Model mobilenet_v2(std::int64_t channels, std::int64_t size, std::int64_t classes);

}  // namespace cuttle::models
