#pragma once
#include <string>

#include "cuda/conv/runner.hpp"

namespace cuttle::cuda {

/// The convolution of a key as an operation graph. What follows it (the bias, then the ReLU; or the accumulation) is in
/// the same kernel or a step of its own: not every engine takes it.
struct GraphVariant {
  const ConvKey& key;
  int fused;  ///< so many of the steps that follow are in the kernel
  graph::OperationGraph build(cudnnHandle_t handle) const;
  std::string label() const { return fused == 0 ? "graph " : fused == 1 ? "fused graph " : "twice fused graph "; }
  std::string label_of(const graph::EngineConfig& config) const { return label() + config.name(); }
  static int steps(const ConvKey& key) { return static_cast<int>(key.bias + key.relu + key.accumulate); }
  bool fuses_bias() const { return key.bias && fused >= 1; }
  bool fuses_relu() const { return key.relu && fused == steps(key); }
  bool fuses_accumulation() const { return key.accumulate && fused >= 1; }
};

/// Why the key's switches rule an engine out, or null.
const char* ruled_out(const graph::EngineConfig& config, const GraphVariant& variant);

/// Whether an engine is to be tried only where there is no other: 16-bit products without tensor cores are slow, and
/// come with transposes.
bool is_last_resort(const graph::EngineConfig& config, const ConvKey& key);

ConvRunnerPtr graph_runner(const GraphVariant& variant, graph::Plan plan);

/// A configuration's plan as a runner, or null, with the reason added, where it does not fit the key or does not build.
ConvRunnerPtr build_graph(Context& context, const GraphVariant& variant, graph::EngineConfig config, Tried& tried);

}  // namespace cuttle::cuda
