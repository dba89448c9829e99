#pragma once
#include <vector>

#include "cuda/conv_runner.hpp"

namespace cuttle::cuda {

/// The convolution of a key as an operation graph, with the bias or the accumulation in the same kernel or as a step
/// of its own: not every engine takes them.
struct GraphVariant {
  const ConvKey& key;
  bool fused;
  graph::OperationGraph build(cudnnHandle_t handle) const;
  std::string name_of(const graph::EngineConfig& config) const {
    return (fused ? "fused graph " : "graph ") + config.name();
  }
  static bool differ(const ConvKey& key) { return key.bias || key.accumulate; }
};

/// Why the key's switches rule an engine out, or null.
const char* ruled_out(const graph::EngineConfig& config, const ConvKey& key);

ConvRunnerPtr graph_runner(const GraphVariant& variant, graph::Plan plan);

}  // namespace cuttle::cuda
