#include "cuda/conv/graph_runner.hpp"

#include <algorithm>
#include <array>

#include "cuttle/error.hpp"
#include "kernels.hpp"

namespace cuttle::cuda {

namespace {

enum Uid : std::int64_t { kA = 1, kB = 2, kOut = 3, kBias = 4, kConvolved = 5, kBiased = 6 };

cudnnDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::f16: return CUDNN_DATA_HALF;
    case DType::bf16: return CUDNN_DATA_BFLOAT16;
    default: return CUDNN_DATA_FLOAT;
  }
}

graph::TensorSpec spec(std::int64_t uid, const std::int64_t (&sizes)[4], const ConvKey& key) {
  graph::TensorSpec t{uid, {}, {}, data_type(key.type()), false, key.alignment};
  std::copy(sizes, sizes + 4, t.sizes.begin());
  const std::int64_t c = sizes[1], h = sizes[2], w = sizes[3];
  if (key.order() == Layout::nhwc) {
    t.strides = {c * h * w, 1, w * c, c};
  } else {
    t.strides = {c * h * w, h * w, w, 1};
  }
  return t;
}

class GraphRunner final : public ConvRunner {
 public:
  GraphRunner(const GraphVariant& variant, graph::Plan plan)
      : label_(variant.label_of(plan.config())),
        plan_(std::move(plan)),
        fused_(variant.fused),
        is_bias_fused_(variant.fuses_bias()),
        clamps_after_(variant.key.relu && !variant.fuses_relu()),
        adds_after_(variant.key.accumulate && !variant.fuses_accumulation()) {}

  void run(Context& context, const ConvOperands& o) const override {
    const Tensor out = adds_after_ ? Tensor::empty(o.out.shape(), o.out.options()) : o.out;
    {
      const Tensor scratch = scratch_bytes(context.index(), plan_.workspace_bytes());
      constexpr std::array<std::int64_t, 4> kUids{kA, kB, kOut, kBias};
      const std::array<void*, 4> pointers{o.a.raw_mutable_data(), o.b.raw_mutable_data(), out.raw_mutable_data(),
                                          is_bias_fused_ ? o.bias.raw_mutable_data() : nullptr};
      const std::size_t count = is_bias_fused_ ? 4 : 3;
      plan_.run(context.cudnn(), std::span(kUids).first(count), std::span(pointers).first(count),
                scratch.defined() ? scratch.raw_mutable_data() : nullptr);
    }
    if (adds_after_) kernels(out).add(o.out, out, o.out);
    add_bias_relu({o.a, o.b, o.out, is_bias_fused_ ? Tensor{} : o.bias}, clamps_after_);
  }

  std::size_t workspace_bytes() const override { return plan_.workspace_bytes(); }
  std::string api() const override { return "graph"; }
  std::string name() const override { return plan_.config().name(); }
  std::string label() const override { return label_; }
  int fused() const override { return fused_; }

 private:
  std::string label_;
  graph::Plan plan_;
  int fused_;
  bool is_bias_fused_, clamps_after_, adds_after_;
};

}  // namespace

graph::OperationGraph GraphVariant::build(cudnnHandle_t handle) const {
  const graph::ConvSpec conv{
      {key.stride[0], key.stride[1]}, {key.padding[0], key.padding[1]}, {key.dilation[0], key.dilation[1]}};
  graph::OperationGraph graph;
  switch (key.which()) {
    case Pass::forward: {
      const graph::TensorSpec y = spec(kOut, key.y, key);
      const auto inside = [&](std::int64_t uid) {
        graph::TensorSpec t = y;
        t.uid = uid;
        t.is_virtual = true;
        t.type = CUDNN_DATA_FLOAT;
        return t;
      };
      const graph::TensorSpec convolved = fuses_bias() || fuses_relu() ? inside(kConvolved) : y;
      const graph::TensorSpec biased = !fuses_bias() ? convolved : fuses_relu() ? inside(kBiased) : y;
      graph.convolution(key.which(), conv, spec(kA, key.x, key), spec(kB, key.w, key), convolved, 0);
      const std::int64_t bias[4] = {1, key.w[0], 1, 1};
      if (fuses_bias()) graph.add(convolved, spec(kBias, bias, key), biased);
      if (fuses_relu()) graph.relu(biased, y);
      break;
    }
    case Pass::backward_data:
      graph.convolution(key.which(), conv, spec(kA, key.y, key), spec(kB, key.w, key), spec(kOut, key.x, key), 0);
      break;
    case Pass::backward_filter:
      graph.convolution(key.which(), conv, spec(kA, key.y, key), spec(kB, key.x, key), spec(kOut, key.w, key),
                        fuses_accumulation() ? 1.0f : 0.0f);
      break;
  }
  graph.finalize(handle);
  return graph;
}

bool is_last_resort(const graph::EngineConfig& config, const ConvKey& key) {
  return key.type() != DType::f32 && !config.has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
}

const char* ruled_out(const graph::EngineConfig& config, const GraphVariant& variant) {
  const ConvKey& key = variant.key;
  // A ReLU of its own costs microseconds a step, the compiler up to seconds before the first.
  if (variant.fuses_relu() && config.is_compiled_at_runtime()) return "it would be compiled at run time";
  if (key.deterministic && config.has(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)) return "it is not deterministic";
  if (!key.reduced_precision && config.has(CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION)) {
    return "it adds up in reduced precision, which is off";
  }
  if (!key.exact()) return nullptr;
  if (config.has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE) || config.has(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS)) {
    return "it computes f32 on tensor cores, and TF32 is off";
  }
  // The larger the tile of a Winograd transform, the larger the numbers that cancel in it.
  if (config.has(CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6) || config.has(CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13)) {
    return "its Winograd transform loses digits of f32, and TF32 is off";
  }
  return nullptr;
}

ConvRunnerPtr graph_runner(const GraphVariant& variant, graph::Plan plan) {
  return std::make_unique<GraphRunner>(variant, std::move(plan));
}

ConvRunnerPtr build_graph(Context& context, const GraphVariant& variant, graph::EngineConfig config, Tried& tried) {
  const std::string label = variant.label_of(config);
  if (tried.failed.contains(label)) return nullptr;
  if (const char* why = ruled_out(config, variant)) {
    tried.attempts.add(label, why);
    return nullptr;
  }
  try {
    graph::Plan plan(context.cudnn(), std::move(config));
    if (variant.key.fits(plan.workspace_bytes())) return graph_runner(variant, std::move(plan));
    tried.attempts.add(label, Attempts::too_large(plan.workspace_bytes(), variant.key.workspace_limit));
  } catch (const CudnnError& error) {
    tried.attempts.add(label, error.cause());
  }
  return nullptr;
}

}  // namespace cuttle::cuda
