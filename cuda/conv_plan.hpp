#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cuda/context.hpp"
#include "cuttle/ops.hpp"
#include "cuda/graph.hpp"

namespace cuttle::cuda {

/// Everything that decides which plan fits. Two convolutions share a plan only if all of it is equal.
struct ConvKey {
  std::int64_t device;
  std::int64_t pass;     ///< graph::Pass
  std::int64_t dtype;    ///< DType of all three tensors
  std::int64_t layout;   ///< Layout
  std::int64_t x[4], w[4], y[4];
  std::int64_t stride[2], padding[2], dilation[2];
  std::int64_t groups;
  std::int64_t bias;             ///< whether a bias is added in the same kernel
  std::int64_t tf32;             ///< whether f32 may be computed in TF32
  std::int64_t deterministic;    ///< whether only deterministic engines may be taken
  std::int64_t workspace_limit;  ///< bytes; -1: none
  std::int64_t alignment;        ///< bytes that every pointer is a multiple of, at most 16
  bool operator==(const ConvKey&) const = default;
};

/// A convolution ready to run.
struct ConvPlan {
  graph::Plan plan;
  std::vector<std::int64_t> uids;  ///< in the order of the pointers: a, b, out, and bias if fused
};

/// The plan for a key: from the cache, else the first that cuDNN's heuristics propose and that builds within the
/// workspace limit. Throws CudnnError listing every candidate with its reason if there is none.
const ConvPlan& conv_plan(Context& context, const ConvKey& key);

/// "conv2d forward f16 NHWC x[...] w[...] ...": for errors.
std::string describe(const ConvKey& key);

}  // namespace cuttle::cuda
