#pragma once
#include <map>
#include <string>
#include <vector>

#include "cuttle/nn.hpp"

namespace cuttle::nn {

/// Tensors of a checkpoint, matched by name against what a model or optimizer expects. Collects everything that does
/// not fit, so that one error tells all of it.
class StateMatch {
 public:
  explicit StateMatch(const std::vector<NamedTensor>& given);
  /// The tensor of that name if it is there in that shape and of the kind of `dtype`, floating or whole numbers; else
  /// notes what is wrong and returns an undefined tensor.
  Tensor take(const std::string& name, const Shape& shape, DType dtype);
  void note(const std::string& problem) { others_.push_back(problem); }
  /// Throws CheckpointError if anything was noted or a given tensor was never taken. `owner` is "the model", say.
  void finish(const std::string& owner) const;

 private:
  struct Given {
    Tensor tensor;
    bool taken = false;
  };
  std::map<std::string, Given> given_;
  std::vector<std::string> missing_, others_;
};

}  // namespace cuttle::nn
