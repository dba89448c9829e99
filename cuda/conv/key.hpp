#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/conv/graph.hpp"
#include "cuttle/conv.hpp"
#include "cuttle/ops.hpp"

namespace cuttle::cuda {

using Pass = ConvPass;

/// Everything that decides how a convolution is best computed. Two share a plan only if all of it is equal.
struct ConvKey {
  std::int64_t device;
  std::int64_t pass;           ///< Pass
  std::int64_t dtype, layout;  ///< DType and Layout of all tensors
  std::int64_t x[4], w[4], y[4];
  std::int64_t stride[2], padding[2], dilation[2];
  std::int64_t groups;
  std::int64_t bias;        ///< forward: a bias is added
  std::int64_t relu;        ///< forward: y is clamped at 0 from below
  std::int64_t accumulate;  ///< backward filter: dw is added to
  std::int64_t alignment;   ///< bytes that every pointer is a multiple of, at most 16
  // ConvSettings
  std::int64_t policy;
  std::int64_t measure_limit;  ///< candidates that the policy `measure` times; 0 with any other
  std::int64_t cudnn;
  std::int64_t tf32;
  std::int64_t deterministic;
  std::int64_t reduced_precision;
  std::int64_t workspace_limit;  ///< bytes; -1: none
  std::int64_t choice;           ///< number of the list of names asked for; 0: "auto"
  bool operator==(const ConvKey&) const = default;

  Pass which() const { return static_cast<Pass>(pass); }
  DType type() const { return static_cast<DType>(dtype); }
  Layout order() const { return static_cast<Layout>(layout); }
  /// Whether f32 must be computed as f32.
  bool exact() const { return type() == DType::f32 && !tf32; }
  /// The names asked for, in order of preference.
  const std::vector<std::string>& names() const;
  bool fits(std::size_t workspace_bytes) const {
    return workspace_limit < 0 || workspace_bytes <= static_cast<std::size_t>(workspace_limit);
  }
};

/// The tensors of one call: forward (x, w, bias) -> y; backward_data (dy, w) -> dx; backward_filter (dy, x) -> dw.
struct ConvOperands {
  Tensor a, b, out, bias;
};

ConvKey conv_key(const ConvSettings& settings, Pass pass, const ConvOperands& operands, const Conv2dOptions& options,
                 bool accumulate, bool relu = false);

/// "conv2d forward f16 NHWC x[...] w[...] ...": for errors.
std::string describe(const ConvKey& key);

}  // namespace cuttle::cuda
