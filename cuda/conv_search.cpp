#include "cuda/conv_search.hpp"

#include <algorithm>
#include <atomic>
#include <future>
#include <map>
#include <thread>

#include "cuda/check.hpp"
#include "cuda/graph_runner.hpp"
#include "cuttle/error.hpp"

namespace cuttle::cuda {

namespace {

constexpr std::int64_t kProposals = 12;  ///< of mode A: the best of twelve was never far behind the best of all
constexpr int kRepeats = 5;
constexpr float kCloseEnough = 1.1f;  ///< times the floor
constexpr std::size_t kMaxThreads = 8;

/// Milliseconds that the card cannot beat: each tensor moved once, each product computed once.
float floor_ms(const Context& context, const ConvKey& key) {
  int clock_khz = 0, memory_khz = 0, bus_bits = 0, major = 0;
  CUTTLE_CUDA(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, context.index()));
  CUTTLE_CUDA(cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, context.index()));
  CUTTLE_CUDA(cudaDeviceGetAttribute(&bus_bits, cudaDevAttrGlobalMemoryBusWidth, context.index()));
  CUTTLE_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, context.index()));
  const auto size = [](const std::int64_t(&s)[4]) {
    return static_cast<double>(s[0]) * static_cast<double>(s[1]) * static_cast<double>(s[2]) *
           static_cast<double>(s[3]);
  };
  const double bytes = (size(key.x) + size(key.w) + size(key.y)) * static_cast<double>(size_of(key.type()));
  const double products = size(key.y) * size(key.w) / static_cast<double>(key.w[0]);
  // Products a clock of one multiprocessor: 128 lanes; tensor cores 1024 (sm_8x) or 2048 (later) in 16 bits, half in
  // TF32.
  double rate = 128;
  if (!key.exact()) rate = (major >= 9 ? 2048 : 1024) / (key.type() == DType::f32 ? 2 : 1);
  // A driver may not tell its clocks: then the search has no floor to stop at.
  if (clock_khz == 0 || memory_khz == 0 || bus_bits == 0) return 0;
  const double by_arithmetic = products / (rate * context.multiprocessors() * clock_khz);
  const double by_memory = bytes * 8 / (2.0 * memory_khz * bus_bits);  // two transfers a clock
  return static_cast<float>(std::max(by_arithmetic, by_memory));
}

EventHandle make_event() {
  cudaEvent_t event = nullptr;
  CUTTLE_CUDA(cudaEventCreate(&event));
  return EventHandle(event);
}

/// Median milliseconds of a few runs after one that is not counted.
float time_of(Context& context, const ConvRunner& runner, const ConvOperands& operands) {
  const EventHandle begin = make_event(), end = make_event();
  runner.run(context, operands);
  std::vector<float> times;
  for (int i = 0; i < kRepeats; ++i) {
    CUTTLE_CUDA(cudaEventRecord(begin.get(), context.stream()));
    runner.run(context, operands);
    CUTTLE_CUDA(cudaEventRecord(end.get(), context.stream()));
    CUTTLE_CUDA(cudaEventSynchronize(end.get()));
    float ms = 0;
    CUTTLE_CUDA(cudaEventElapsedTime(&ms, begin.get(), end.get()));
    times.push_back(ms);
  }
  std::nth_element(times.begin(), times.begin() + kRepeats / 2, times.end());
  return times[kRepeats / 2];
}

/// A handle for the threads that build: the context's own runs plans meanwhile. Called under the plan cache's lock.
cudnnHandle_t building_handle(int device) {
  static auto& handles = *new std::map<int, CudnnHandle>;
  CudnnHandle& handle = handles[device];
  if (!handle) {
    cudnnHandle_t made = nullptr;
    CUTTLE_CUDNN(cudnnCreate(&made));
    handle.reset(made);
  }
  return handle.get();
}

/// A candidate, or why it is none.
struct Built {
  ConvRunnerPtr runner;
  std::string name, reason;
};

struct Proposal {
  graph::Descriptor config;
  bool fused;
};

Built build(cudnnHandle_t handle, const ConvKey& key, Proposal& proposal) {
  Built built;
  const GraphVariant variant{key, proposal.fused};
  try {
    graph::EngineConfig config(std::move(proposal.config));
    built.name = variant.name_of(config);
    if (const char* why = ruled_out(config, key)) {
      built.reason = why;
      return built;
    }
    graph::Plan plan(handle, std::move(config));
    if (key.fits(plan.workspace_bytes())) {
      built.runner = graph_runner(variant, std::move(plan));
    } else {
      built.reason = Attempts::too_large(plan.workspace_bytes(), key.workspace_limit);
    }
  } catch (const Error& error) {
    built.reason = error.cause();
  }
  return built;
}

std::vector<Proposal> proposals_of(cudnnHandle_t handle, const ConvKey& key, Attempts& attempts) {
  std::vector<Proposal> all;
  const auto take = [&](bool fused, cudnnBackendHeurMode_t mode) {
    try {
      const graph::OperationGraph graph = GraphVariant{key, fused}.build(handle);
      for (graph::Descriptor& config : graph::propose(graph, mode, kProposals))
        all.push_back({std::move(config), fused});
    } catch (const CudnnError& error) {
      attempts.add("cuDNN graph", error.cause());
    }
  };
  if (GraphVariant::differ(key)) take(true, CUDNN_HEUR_MODE_A);
  take(false, CUDNN_HEUR_MODE_A);
  take(false, CUDNN_HEUR_MODE_FALLBACK);
  return all;
}

/// Builds every proposal in threads; results come in the order of the proposals.
class Builder {
 public:
  Builder(int device, cudnnHandle_t handle, const ConvKey& key, std::vector<Proposal> proposals)
      : proposals_(std::move(proposals)), promises_(proposals_.size()) {
    const std::size_t cores = std::max(1u, std::thread::hardware_concurrency());
    const std::size_t count = std::min({proposals_.size(), kMaxThreads, cores});
    for (std::size_t i = 0; i < count; ++i) {
      threads_.emplace_back([this, device, handle, &key] {
        cudaSetDevice(device);
        for (std::size_t next = next_++; next < proposals_.size(); next = next_++) {
          promises_[next].set_value(stop_ ? Built{} : build(handle, key, proposals_[next]));
        }
      });
    }
  }
  ~Builder() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  Builder(const Builder&) = delete;
  Builder& operator=(const Builder&) = delete;
  std::size_t size() const { return proposals_.size(); }
  Built wait(std::size_t i) { return promises_[i].get_future().get(); }

 private:
  std::vector<Proposal> proposals_;
  std::vector<std::promise<Built>> promises_;
  std::atomic<std::size_t> next_ = 0;
  std::atomic<bool> stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

ConvRunnerPtr fastest_runner(Context& context, const ConvKey& key, const ConvOperands& operands,
                             const std::set<std::string>& failed, Attempts& attempts) {
  ConvOperands scratch = operands;
  cudnnHandle_t handle = nullptr;
  try {
    handle = building_handle(context.index());
    scratch.out = Tensor::empty(operands.out.shape(), operands.out.options());
  } catch (const Error& error) {
    attempts.add("measuring", error.cause());
    return nullptr;
  }
  const float close_enough = kCloseEnough * floor_ms(context, key);
  ConvRunnerPtr best;
  float best_ms = 0;
  const auto consider = [&](ConvRunnerPtr runner) {
    if (failed.contains(runner->name())) return;
    try {
      const float ms = time_of(context, *runner, scratch);
      if (!best || ms < best_ms) best = std::move(runner), best_ms = ms;
    } catch (const Error& error) {
      attempts.add(runner->name(), error.cause());
    }
  };
  Builder builder(context.index(), handle, key, proposals_of(handle, key, attempts));
  if (ConvRunnerPtr own = depthwise_runner(key)) consider(std::move(own));
  for (std::size_t i = 0; i < builder.size() && !(best && best_ms <= close_enough); ++i) {
    Built built = builder.wait(i);
    if (built.runner) {
      consider(std::move(built.runner));
    } else {
      attempts.add(built.name, built.reason);
    }
  }
  return best;
}

}  // namespace cuttle::cuda
