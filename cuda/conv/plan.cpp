#include "cuda/conv/plan.hpp"

#include <fmt/format.h>

#include <limits>
#include <mutex>
#include <string_view>
#include <type_traits>
#include <unordered_map>

#include "cuda/check.hpp"
#include "cuda/conv/graph_runner.hpp"
#include "cuda/conv/legacy.hpp"
#include "cuda/conv/search.hpp"
#include "cuda/kernels/bias.hpp"
#include "cuttle/error.hpp"
#include "kernels.hpp"

namespace cuttle::cuda {

namespace {

struct KeyHash {
  std::size_t operator()(const ConvKey& key) const {
    static_assert(std::has_unique_object_representations_v<ConvKey>, "the key is hashed as bytes");
    return std::hash<std::string_view>{}({reinterpret_cast<const char*>(&key), sizeof key});
  }
};

struct Entry {
  std::shared_ptr<const ConvRunner> runner;
  std::set<std::string> failed;  ///< runners that were built and then refused to run
  Attempts attempts;
};

std::mutex mutex;
auto& entries = *new std::unordered_map<ConvKey, Entry, KeyHash>;

bool is_capturing(const Context& context) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  CUTTLE_CUDA(cudaStreamIsCapturing(context.stream(), &status));
  return status != cudaStreamCaptureStatusNone;
}

/// A configuration's plan, or null, with the reason added, where it does not fit the key or does not build.
ConvRunnerPtr plan_of(Context& context, const GraphVariant& variant, graph::EngineConfig config, Entry& entry) {
  const std::string name = variant.name_of(config);
  if (entry.failed.contains(name)) return nullptr;
  if (const char* why = ruled_out(config, variant)) {
    entry.attempts.add(name, why);
    return nullptr;
  }
  try {
    graph::Plan plan(context.cudnn(), std::move(config));
    if (variant.key.fits(plan.workspace_bytes())) return graph_runner(variant, std::move(plan));
    entry.attempts.add(name, Attempts::too_large(plan.workspace_bytes(), variant.key.workspace_limit));
  } catch (const CudnnError& error) {
    entry.attempts.add(name, error.cause());
  }
  return nullptr;
}

/// The first plan of a heuristic mode that fits the key and builds.
ConvRunnerPtr first_plan(Context& context, const GraphVariant& variant, cudnnBackendHeurMode_t mode, Entry& entry) {
  const ConvKey& key = variant.key;
  std::vector<graph::Descriptor> proposals;
  try {
    const graph::OperationGraph graph = variant.build(context.cudnn());
    proposals = graph::propose(graph, mode, std::numeric_limits<std::int64_t>::max());
  } catch (const CudnnError& error) {
    entry.attempts.add("cuDNN graph", error.cause());
  }
  std::vector<graph::EngineConfig> last;
  for (graph::Descriptor& proposal : proposals) {
    try {
      graph::EngineConfig config(std::move(proposal));
      if (is_last_resort(config, key)) {
        last.push_back(std::move(config));
      } else if (auto runner = plan_of(context, variant, std::move(config), entry)) {
        return runner;
      }
    } catch (const CudnnError& error) {
      entry.attempts.add("graph engine", error.cause());
    }
  }
  for (graph::EngineConfig& config : last) {
    if (auto runner = plan_of(context, variant, std::move(config), entry)) return runner;
  }
  return nullptr;
}

ConvRunnerPtr first_graph(Context& context, const ConvKey& key, Entry& entry) {
  for (int fused = GraphVariant::steps(key); fused > 0; --fused) {
    if (auto runner = first_plan(context, {key, fused}, CUDNN_HEUR_MODE_A, entry)) return runner;
  }
  for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B, CUDNN_HEUR_MODE_FALLBACK}) {
    if (auto runner = first_plan(context, {key, 0}, mode, entry)) return runner;
  }
  return nullptr;
}

/// A runner that did not already fail, or null.
ConvRunnerPtr unless_failed(ConvRunnerPtr runner, const Entry& entry) {
  return runner && !entry.failed.contains(runner->name()) ? std::move(runner) : nullptr;
}

ConvRunnerPtr choose(Context& context, const ConvKey& key, const ConvOperands& operands, Entry& entry) {
  const auto path = static_cast<ConvPath>(key.path);
  if (path == ConvPath::legacy) return legacy_runner(context, key, entry.failed, entry.attempts);
  if (path == ConvPath::gemm) return unless_failed(gemm_runner(key, entry.attempts), entry);
  if (path == ConvPath::measured) {
    if (is_capturing(context)) {
      throw DeviceError(describe(key) + " has not been measured, and a step that is being captured cannot measure it",
                        "run the step once before capturing it");
    }
    if (auto runner = fastest_runner(context, key, operands, entry.failed, entry.attempts)) return runner;
  }
  if (auto runner = unless_failed(own_runner(context, key), entry)) return runner;
  if (auto runner = first_graph(context, key, entry)) return runner;
  if (auto runner = legacy_runner(context, key, entry.failed, entry.attempts)) return runner;
  return unless_failed(gemm_runner(key, entry.attempts), entry);
}

std::shared_ptr<const ConvRunner> runner_of(Context& context, const ConvKey& key, const ConvOperands& operands) {
  const std::lock_guard lock(mutex);
  Entry& entry = entries[key];
  if (entry.runner) return entry.runner;
  entry.runner = choose(context, key, operands, entry);
  if (entry.runner) return entry.runner;
  const std::string text = entry.attempts.text();
  entries.erase(key);
  throw CudnnError(fmt::format("no algorithm runs {}; tried:{}", describe(key),
                               text.empty() ? "\n    nothing: the heuristics proposed no engine" : text),
                   "allow more workspace (--workspace-limit), or compute without cuDNN (--conv gemm)");
}

void mark_failed(const ConvKey& key, const ConvRunner& runner, const std::string& reason) {
  const std::lock_guard lock(mutex);
  Entry& entry = entries[key];
  entry.failed.insert(runner.name());
  entry.attempts.add(runner.name(), reason);
  entry.runner = nullptr;
}

}  // namespace

std::string Attempts::too_large(std::size_t bytes, std::int64_t limit) {
  return fmt::format("it wants {} bytes of workspace, the limit is {}", bytes, limit);
}

Tensor scratch_bytes(int device, std::size_t bytes) {
  if (bytes == 0) return {};
  return Tensor::empty({static_cast<std::int64_t>(bytes)}, {DType::u8, {DeviceKind::cuda, device}});
}

void add_bias_relu(const ConvOperands& operands, bool relu) {
  const Tensor& y = operands.out;
  if (operands.bias.defined()) add_bias(operands.bias, y);
  if (relu) kernels(y).relu(y, std::numeric_limits<double>::infinity(), y);
}

ConvRunnerPtr own_runner(const Context& context, const ConvKey& key) {
  ConvRunnerPtr runner = depthwise_runner(key);
  return runner ? std::move(runner) : first_layer_runner(context, key);
}

void run_convolution(const ConvKey& wanted, const ConvOperands& operands) {
  Context& context = cuda::context(operands.a);
  ConvKey key = wanted;
  std::string short_of_memory, cause, hint;
  while (true) {
    std::shared_ptr<const ConvRunner> runner;
    try {
      runner = runner_of(context, key, operands);
      return runner->run(context, operands);
    } catch (const OutOfMemoryError& error) {
      if (cause.empty()) cause = error.cause(), hint = error.hint();
      const std::size_t bytes = runner ? runner->workspace_bytes() : 0;
      if (bytes == 0) throw;
      short_of_memory += fmt::format("\n    {}: {} bytes of workspace could not be had", runner->name(), bytes);
      key.workspace_limit = static_cast<std::int64_t>(bytes / 2);
    } catch (const CudnnError& error) {
      if (!runner) {
        if (short_of_memory.empty()) throw;
        throw OutOfMemoryError(
            fmt::format("{}: {}; tried:{}\n{}", describe(wanted), cause, short_of_memory, error.cause()), hint);
      }
      mark_failed(key, *runner, error.cause());
    }
  }
}

std::string cached_runner(const ConvKey& key) {
  const std::lock_guard lock(mutex);
  const auto found = entries.find(key);
  return found == entries.end() || !found->second.runner ? "" : found->second.runner->name();
}

}  // namespace cuttle::cuda
