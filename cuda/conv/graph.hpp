#pragma once
#include <cudnn.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cuda/handle.hpp"
#include "cuttle/conv.hpp"

/// A thin owner-safe layer over cuDNN's backend (graph) API: descriptors, operation graphs, engine configurations and
/// execution plans. No policy here: plan.hpp chooses.
namespace cuttle::cuda::graph {

/// One backend descriptor. Setters return *this, so that a descriptor reads as one expression; all throw CudnnError.
class Descriptor {
 public:
  explicit Descriptor(cudnnBackendDescriptorType_t type);

  Descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::int64_t count,
                  const void* values);
  Descriptor& set(cudnnBackendAttributeName_t name, std::int64_t value);
  Descriptor& set(cudnnBackendAttributeName_t name, std::span<const std::int64_t> values);
  Descriptor& set(cudnnBackendAttributeName_t name, bool value);
  Descriptor& set(cudnnBackendAttributeName_t name, float value);
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnDataType_t value);
  Descriptor& set(cudnnBackendAttributeName_t name, cudnnHandle_t value);
  Descriptor& set(cudnnBackendAttributeName_t name, const Descriptor& value);
  Descriptor& set(cudnnBackendAttributeName_t name, std::span<const Descriptor> values);
  Descriptor& finalize();
  /// For answers that are no errors of ours.
  cudnnStatus_t try_finalize();

  std::int64_t get_int(cudnnBackendAttributeName_t name) const;
  cudnnBackendDescriptor_t get() const { return descriptor_.get(); }

 private:
  struct Destroy {
    void operator()(cudnnBackendDescriptor_t d) const noexcept { cudnnBackendDestroyDescriptor(d); }
    using pointer = cudnnBackendDescriptor_t;
  };
  std::unique_ptr<void, Destroy> descriptor_;
};

/// A tensor of an operation graph. Sizes and strides are in the order N,C,H,W whatever the layout.
struct TensorSpec {
  std::int64_t uid;
  std::array<std::int64_t, 4> sizes, strides;
  cudnnDataType_t type;
  bool is_virtual = false;      ///< lives only inside the fused kernel
  std::int64_t alignment = 16;  ///< bytes
};

using Pass = ConvPass;

/// Computed in f32, whatever the tensors hold.
struct ConvSpec {
  std::array<std::int64_t, 2> stride, padding, dilation;
};

/// Operations over tensors, finalized into a graph that engines can be asked about.
class OperationGraph {
 public:
  /// forward: (x, w) -> y; backward_data: (dy, w) -> dx; backward_filter: (dy, x) -> dw. out = conv(a, b) + beta * out.
  void convolution(Pass pass, const ConvSpec& conv, const TensorSpec& a, const TensorSpec& b, const TensorSpec& out,
                   float beta);
  /// out = a + b, b broadcast where its sizes are 1.
  void add(const TensorSpec& a, const TensorSpec& b, const TensorSpec& out);
  /// out = max(x, 0)
  void relu(const TensorSpec& x, const TensorSpec& out);
  void finalize(cudnnHandle_t handle);
  const Descriptor& descriptor() const { return graph_; }

 private:
  void pointwise(cudnnPointwiseMode_t mode, const TensorSpec& a, const TensorSpec* b, const TensorSpec& out);
  std::vector<Descriptor> operations_;
  Descriptor graph_{CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR};
};

/// An engine with its knobs, as heuristics propose it.
class EngineConfig {
 public:
  /// Takes a filled-in engine configuration and asks it what it is.
  explicit EngineConfig(Descriptor config);
  bool has(cudnnBackendNumericalNote_t note) const;
  bool is_compiled_at_runtime() const { return is_compiled_at_runtime_; }  ///< by NVRTC, which takes its time
  std::int64_t engine() const { return engine_; }
  const std::string& name() const { return name_; }  ///< "engine:65,k2=5,k13=1"
  const Descriptor& descriptor() const { return config_; }

 private:
  Descriptor config_;
  std::vector<cudnnBackendNumericalNote_t> notes_;
  bool is_compiled_at_runtime_ = false;
  std::int64_t engine_ = 0;
  std::string name_;
};

/// What an engine's knob may be set to.
struct Knob {
  std::int64_t type, least, most, step;
};

/// The engine of this number with these knobs (type, value); those not named stay as the engine has them. Throws
/// CudnnError, saying what is allowed, for an engine, a knob or a value that is not there for this graph.
EngineConfig configure(const OperationGraph& graph, std::int64_t engine,
                       std::span<const std::pair<std::int64_t, std::int64_t>> knobs);

/// The first `most` configurations that this heuristic mode proposes, best first. A mode that knows nothing of the
/// graph proposes nothing.
std::vector<Descriptor> propose(const OperationGraph& graph, cudnnBackendHeurMode_t mode, std::int64_t most);

/// A finalized plan, ready to run any number of times.
class Plan {
 public:
  /// Throws CudnnError with cuDNN's reason if this configuration does not support the graph.
  Plan(cudnnHandle_t handle, EngineConfig config);
  std::size_t workspace_bytes() const { return workspace_bytes_; }
  const EngineConfig& config() const { return config_; }
  void run(cudnnHandle_t handle, std::span<const std::int64_t> uids, std::span<void* const> pointers,
           void* workspace) const;

 private:
  EngineConfig config_;
  Descriptor plan_{CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR};
  std::size_t workspace_bytes_ = 0;
};

}  // namespace cuttle::cuda::graph
