#include "cuda/conv_plan.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <mutex>
#include <string_view>
#include <type_traits>
#include <unordered_map>

#include "cuttle/error.hpp"

namespace cuttle::cuda {

namespace {

enum Uid : std::int64_t { kA = 1, kB = 2, kOut = 3, kBias = 4, kConvolved = 5 };

struct KeyHash {
  std::size_t operator()(const ConvKey& key) const {
    static_assert(std::has_unique_object_representations_v<ConvKey>, "the key is hashed as bytes");
    return std::hash<std::string_view>{}({reinterpret_cast<const char*>(&key), sizeof key});
  }
};

cudnnDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::f16: return CUDNN_DATA_HALF;
    case DType::bf16: return CUDNN_DATA_BFLOAT16;
    case DType::f64: return CUDNN_DATA_DOUBLE;
    default: return CUDNN_DATA_FLOAT;
  }
}

graph::TensorSpec spec(std::int64_t uid, const std::int64_t (&sizes)[4], const ConvKey& key) {
  graph::TensorSpec t{uid, {}, {}, data_type(static_cast<DType>(key.dtype)), false, key.alignment};
  std::copy(sizes, sizes + 4, t.sizes.begin());
  const auto [n, c, h, w] = t.sizes;
  if (static_cast<Layout>(key.layout) == Layout::nhwc) {
    t.strides = {c * h * w, 1, w * c, c};
  } else {
    t.strides = {c * h * w, h * w, w, 1};
  }
  return t;
}

graph::OperationGraph build(cudnnHandle_t handle, const ConvKey& key) {
  const auto pass = static_cast<graph::Pass>(key.pass);
  const graph::ConvSpec conv{{key.stride[0], key.stride[1]},
                             {key.padding[0], key.padding[1]},
                             {key.dilation[0], key.dilation[1]},
                             static_cast<DType>(key.dtype) == DType::f64 ? CUDNN_DATA_DOUBLE : CUDNN_DATA_FLOAT};
  graph::OperationGraph graph;
  switch (pass) {
    case graph::Pass::forward: {
      graph::TensorSpec y = spec(kOut, key.y, key);
      if (!key.bias) {
        graph.convolution(pass, conv, spec(kA, key.x, key), spec(kB, key.w, key), y);
        break;
      }
      graph::TensorSpec convolved = y;
      convolved.uid = kConvolved;
      convolved.is_virtual = true;
      convolved.type = CUDNN_DATA_FLOAT;
      const std::int64_t bias[4] = {1, key.w[0], 1, 1};
      graph.convolution(pass, conv, spec(kA, key.x, key), spec(kB, key.w, key), convolved);
      graph.add(convolved, spec(kBias, bias, key), y);
      break;
    }
    case graph::Pass::backward_data:
      graph.convolution(pass, conv, spec(kA, key.y, key), spec(kB, key.w, key), spec(kOut, key.x, key));
      break;
    case graph::Pass::backward_filter:
      graph.convolution(pass, conv, spec(kA, key.y, key), spec(kB, key.x, key), spec(kOut, key.w, key));
      break;
  }
  graph.finalize(handle);
  return graph;
}

/// Why the key's switches rule a proposal out, or nothing.
const char* ruled_out(const graph::EngineConfig& config, const ConvKey& key) {
  if (key.deterministic && config.has(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)) return "it is not deterministic";
  const bool exact = static_cast<DType>(key.dtype) == DType::f32 && !key.tf32;
  if (exact && (config.has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE) || config.has(CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS))) {
    return "it computes f32 on tensor cores, and TF32 is off";
  }
  return nullptr;
}

ConvPlan choose(Context& context, const ConvKey& key) {
  const graph::OperationGraph graph = build(context.cudnn(), key);
  std::string reasons;
  for (const cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    for (const graph::EngineConfig& config : graph::propose(graph, mode)) {
      if (const char* why = ruled_out(config, key)) {
        reasons += fmt::format("\n    {}: {}", config.name(), why);
        continue;
      }
      try {
        graph::Plan plan(context.cudnn(), config);
        if (key.workspace_limit >= 0 && plan.workspace_bytes() > key.workspace_limit) {
          reasons += fmt::format("\n    {}: it needs {} bytes of workspace, the limit is {}", config.name(),
                                 plan.workspace_bytes(), key.workspace_limit);
          continue;
        }
        std::vector<std::int64_t> uids{kA, kB, kOut};
        if (key.bias) uids.push_back(kBias);
        return {std::move(plan), std::move(uids)};
      } catch (const CudnnError& error) {
        reasons += fmt::format("\n    {}: {}", config.name(), error.cause());
      }
    }
  }
  throw CudnnError(fmt::format("no cuDNN engine runs {}; tried:{}", describe(key),
                               reasons.empty() ? "\n    nothing: the heuristics proposed no engine" : reasons));
}

}  // namespace

std::string describe(const ConvKey& key) {
  constexpr const char* kPasses[] = {"forward", "backward-data", "backward-filter"};
  return fmt::format("conv2d {} {} {} x[{}] w[{}] stride {} padding {} dilation {} groups {}{}", kPasses[key.pass],
                     name_of(static_cast<DType>(key.dtype)), name_of(static_cast<Layout>(key.layout)),
                     fmt::join(key.x, ","), fmt::join(key.w, ","), fmt::join(key.stride, "x"),
                     fmt::join(key.padding, "x"), fmt::join(key.dilation, "x"), key.groups, key.bias ? " + bias" : "");
}

const ConvPlan& conv_plan(Context& context, const ConvKey& key) {
  static std::mutex mutex;
  static auto& plans = *new std::unordered_map<ConvKey, std::unique_ptr<const ConvPlan>, KeyHash>;
  std::lock_guard lock(mutex);
  auto& plan = plans[key];
  if (!plan) {
    try {
      plan = std::make_unique<const ConvPlan>(choose(context, key));
    } catch (...) {
      plans.erase(key);
      throw;
    }
  }
  return *plan;
}

}  // namespace cuttle::cuda
