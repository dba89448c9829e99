#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cuttle/nn.hpp"

namespace cuttle::models {

struct ModelInfo {
  std::string name;                      ///< torchvision's where it has the model
  std::int64_t channels, size, classes;  ///< of the input and output it is made for
  std::unique_ptr<nn::Module> (*make)(std::int64_t channels, std::int64_t size, std::int64_t classes);
};

const std::vector<ModelInfo>& zoo();
/// Throws UsageError listing the names there are.
const ModelInfo& find(std::string_view name);

}  // namespace cuttle::models
