#include "nn/state_match.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "cuttle/error.hpp"

namespace cuttle::nn {
namespace {

/// Enough names to recognise the other model by; a whole ResNet's would bury the sentence.
constexpr std::size_t kMaxListed = 20;

std::string listed(const std::vector<std::string>& names) {
  const std::size_t shown = std::min(names.size(), kMaxListed);
  std::string text = fmt::format("{}", fmt::join(std::span(names).first(shown), ", "));
  if (names.size() > shown) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

}  // namespace

StateMatch::StateMatch(const std::vector<NamedTensor>& given) {
  for (const NamedTensor& t : given) {
    if (!given_.emplace(t.name, Given{t.tensor}).second) note(fmt::format("{} stands twice", t.name));
    if (!t.tensor.defined()) note(fmt::format("{} is an undefined tensor", t.name));
  }
}

Tensor StateMatch::take(const std::string& name, const Shape& shape, DType dtype) {
  const auto found = given_.find(name);
  if (found == given_.end()) {
    missing_.push_back(name);
    return {};
  }
  auto& [tensor, taken] = found->second;
  taken = true;
  if (!tensor.defined()) return tensor;
  if (tensor.shape() != shape) {
    note(fmt::format("{} is {} instead of {}", name, tensor.shape().str(), shape.str()));
    return {};
  }
  if (is_floating(tensor.dtype()) != is_floating(dtype)) {
    note(fmt::format("{} is of {}, which does not become {}", name, name_of(tensor.dtype()), name_of(dtype)));
    return {};
  }
  return tensor;
}

void StateMatch::finish(const std::string& owner) const {
  std::vector<std::string> unexpected, problems;
  for (const auto& [name, given] : given_) {
    if (!given.taken) unexpected.push_back(name);
  }
  if (!missing_.empty()) problems.push_back("missing " + listed(missing_));
  if (!unexpected.empty()) problems.push_back("unexpected " + listed(unexpected));
  if (!others_.empty()) problems.push_back(listed(others_));
  if (problems.empty()) return;
  throw CheckpointError(fmt::format("the tensors do not fit {}: {}", owner, fmt::join(problems, "; ")),
                        "make it with the options it was saved with, or load another checkpoint; nothing was changed");
}

}  // namespace cuttle::nn
