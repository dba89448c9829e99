#include "cuda/conv/choose.hpp"

#include <limits>

#include "cuda/check.hpp"
#include "cuda/conv/graph_runner.hpp"
#include "cuda/conv/legacy.hpp"
#include "cuda/conv/search.hpp"
#include "cuttle/error.hpp"

namespace cuttle::cuda {

namespace {

/// The first plan of a heuristic mode that fits the key and builds.
ConvRunnerPtr first_plan(Context& context, const GraphVariant& variant, cudnnBackendHeurMode_t mode, Tried& tried) {
  const ConvKey& key = variant.key;
  std::vector<graph::Descriptor> proposals;
  try {
    const graph::OperationGraph graph = variant.build(context.cudnn());
    proposals = graph::propose(graph, mode, std::numeric_limits<std::int64_t>::max());
  } catch (const CudnnError& error) {
    tried.attempts.add("cuDNN graph", error.cause());
  }
  std::vector<graph::EngineConfig> last;
  for (graph::Descriptor& proposal : proposals) {
    try {
      graph::EngineConfig config(std::move(proposal));
      if (is_last_resort(config, key)) {
        last.push_back(std::move(config));
      } else if (auto runner = build_graph(context, variant, std::move(config), tried)) {
        return runner;
      }
    } catch (const CudnnError& error) {
      tried.attempts.add("graph engine", error.cause());
    }
  }
  for (graph::EngineConfig& config : last) {
    if (auto runner = build_graph(context, variant, std::move(config), tried)) return runner;
  }
  return nullptr;
}

ConvRunnerPtr first_graph(Context& context, const ConvKey& key, Tried& tried) {
  for (int fused = GraphVariant::steps(key); fused > 0; --fused) {
    if (auto runner = first_plan(context, {key, fused}, CUDNN_HEUR_MODE_A, tried)) return runner;
  }
  for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B, CUDNN_HEUR_MODE_FALLBACK}) {
    if (auto runner = first_plan(context, {key, 0}, mode, tried)) return runner;
  }
  return nullptr;
}

/// A runner that did not already fail, or null.
ConvRunnerPtr unless_failed(ConvRunnerPtr runner, const Tried& tried) {
  return runner && !tried.failed.contains(runner->label()) ? std::move(runner) : nullptr;
}

ConvRunnerPtr by_heuristic(Context& context, const ConvKey& key, Tried& tried) {
  const auto policy = static_cast<ConvPolicy>(key.policy);
  const bool cudnn = key.cudnn != 0;
  if (policy == ConvPolicy::legacy && cudnn) return legacy_runner(context, key, tried);
  if (policy == ConvPolicy::gemm) return unless_failed(gemm_runner(key, tried.attempts), tried);
  if (auto runner = unless_failed(own_runner(context, key), tried)) return runner;
  if (cudnn) {
    if (auto runner = first_graph(context, key, tried)) return runner;
    if (auto runner = legacy_runner(context, key, tried)) return runner;
  }
  return unless_failed(gemm_runner(key, tried.attempts), tried);
}

Chosen choose_by_policy(Context& context, const ConvKey& key, const ConvOperands& operands, const Measuring& measuring,
                        Tried& tried) {
  const bool measures = static_cast<ConvPolicy>(key.policy) == ConvPolicy::measure;
  if (measures && measuring.now) {
    if (Chosen fastest = fastest_runner(context, key, operands, measuring.incumbent, tried); fastest.runner) {
      return fastest;
    }
  }
  return {by_heuristic(context, key, tried), 0, measures && !measuring.now};
}

/// "engine:65,k2=5,k13=1": the number, then knobs and values. The name has been checked.
struct EngineName {
  std::int64_t engine = 0;
  std::vector<std::pair<std::int64_t, std::int64_t>> knobs;
  explicit EngineName(const std::string& name) {
    std::vector<std::int64_t> numbers;
    for (std::size_t at = 0; (at = name.find_first_of("0123456789", at)) != std::string::npos;) {
      std::size_t digits = 0;
      numbers.push_back(std::stoll(name.substr(at), &digits));
      at += digits;
    }
    engine = numbers.front();
    for (std::size_t i = 1; i + 1 < numbers.size(); i += 2) knobs.emplace_back(numbers[i], numbers[i + 1]);
  }
};

/// The engine with the knobs that are named; without any with those that heuristic mode A first proposes for it, or the
/// engine's own.
graph::EngineConfig engine_config(const graph::OperationGraph& graph, const EngineName& name) {
  if (name.knobs.empty()) {
    for (graph::Descriptor& proposal :
         graph::propose(graph, CUDNN_HEUR_MODE_A, std::numeric_limits<std::int64_t>::max())) {
      graph::EngineConfig config(std::move(proposal));
      if (config.engine() == name.engine) return config;
    }
  }
  return graph::configure(graph, name.engine, name.knobs);
}

ConvRunnerPtr named_engine(Context& context, const ConvKey& key, const std::string& name, Tried& tried) {
  const EngineName wanted(name);
  for (int fused = GraphVariant::steps(key); fused >= 0; --fused) {
    const GraphVariant variant{key, fused};
    try {
      graph::EngineConfig config = engine_config(variant.build(context.cudnn()), wanted);
      if (auto runner = build_graph(context, variant, std::move(config), tried)) return runner;
    } catch (const CudnnError& error) {
      tried.attempts.add(variant.label() + name, error.cause());
    }
  }
  return nullptr;
}

}  // namespace

ConvRunnerPtr own_runner(const Context& context, const ConvKey& key) {
  ConvRunnerPtr runner = depthwise_runner(key);
  return runner ? std::move(runner) : first_layer_runner(context, key);
}

ConvRunnerPtr named_runner(Context& context, const ConvKey& key, const std::string& name, Tried& tried) {
  const auto refuse = [&](const char* why) {
    tried.attempts.add(name, why);
    return nullptr;
  };
  if (name == "gemm") return unless_failed(gemm_runner(key, tried.attempts), tried);
  if (name == "depthwise" || name == "first_layer") {
    ConvRunnerPtr own = name == "depthwise" ? depthwise_runner(key) : first_layer_runner(context, key);
    return own ? unless_failed(std::move(own), tried)
               : refuse("this kernel of Cuttle's own does not take the convolution");
  }
  const bool is_engine = name.starts_with("engine:");
  if (!is_engine && !is_legacy_name(key.which(), name)) return refuse("it is an algorithm of the CPU");
  if (!key.cudnn) return refuse("cuDNN is switched off");
  return is_engine ? named_engine(context, key, name, tried) : legacy_runner_of(context, key, name, tried);
}

Chosen choose(Context& context, const ConvKey& key, const ConvOperands& operands, const Measuring& measuring,
              Tried& tried) {
  for (const std::string& name : key.names()) {
    Chosen chosen = name == "auto" ? choose_by_policy(context, key, operands, measuring, tried)
                                   : Chosen{named_runner(context, key, name, tried)};
    if (chosen.runner) return chosen;
  }
  return {};
}

}  // namespace cuttle::cuda
