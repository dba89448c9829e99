#pragma once
#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cuda/conv/key.hpp"
#include "cuda/runtime/context.hpp"

namespace cuttle::cuda {

/// One way to compute a convolution, ready to run any number of times on tensors that fit its key.
class ConvRunner {
 public:
  virtual ~ConvRunner() = default;
  /// Queues the work. Throws OutOfMemoryError where the workspace cannot be had, CudnnError where cuDNN refuses.
  virtual void run(Context& context, const ConvOperands& operands) const = 0;
  virtual std::size_t workspace_bytes() const = 0;
  virtual std::string api() const = 0;     ///< graph, legacy, gemm or own
  virtual std::string name() const = 0;    ///< as ConvAlgorithms takes it: "engine:65,k2=5", "FFT_TILING", "gemm"
  virtual int fused() const { return 0; }  ///< graph: so many of the steps that follow are in the kernel
  virtual std::string label() const { return name(); }  ///< and which API: "fused graph engine:65", "legacy GEMM"
};
using ConvRunnerPtr = std::shared_ptr<const ConvRunner>;

/// What was tried and why it was not taken.
class Attempts {
 public:
  void add(const std::string& name, const std::string& reason) { text_ += "\n    " + name + ": " + reason; }
  /// The reason for a workspace above the limit.
  static std::string too_large(std::size_t bytes, std::int64_t limit);
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

/// What became of the algorithms that were tried for a key.
struct Tried {
  std::set<std::string> failed = {};  ///< labels of runners that were built and then refused to run: passed over
  Attempts attempts = {};
};

/// What follows a forward convolution whose kernel does not do it: y += bias where there is one, then the clamp at 0.
void add_bias_relu(const ConvOperands& operands, bool relu);

/// Memory that work queued before it goes out of scope may use: stream order protects it afterwards.
Tensor scratch_bytes(int device, std::size_t bytes);

/// The gemm path (gemm_path.cu). Null, with the reason added, where the workspace limit leaves no room for one row of
/// patches.
ConvRunnerPtr gemm_runner(const ConvKey& key, Attempts& attempts);

/// Kernels of our own for NHWC depthwise convolutions of one filter a channel (depthwise.cu); null for any other.
ConvRunnerPtr depthwise_runner(const ConvKey& key);

/// Kernels of our own for filter gradients of NHWC convolutions with few input channels, as first layers have
/// (first_layer.cu); null for any other, and where the workspace limit does not allow it.
ConvRunnerPtr first_layer_runner(const Context& context, const ConvKey& key);

/// The one of the two that takes the key, or null.
ConvRunnerPtr own_runner(const Context& context, const ConvKey& key);

}  // namespace cuttle::cuda
