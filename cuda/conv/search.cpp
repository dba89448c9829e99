#include "cuda/conv/search.hpp"

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>

#include "cuda/check.hpp"
#include "cuda/conv/graph_runner.hpp"
#include "cuda/conv/search_record.hpp"
#include "cuttle/error.hpp"

namespace cuttle::cuda {

namespace {

// A plan takes 0.02 s to build, some take 0.3 s, and neither more threads nor more candidates have been worth it: the
// best is nearly always among the first few.
constexpr std::int64_t kAsked = 16;  ///< of mode A
constexpr int kLessFusedProposals = 2;
constexpr int kLeast = 3;                            ///< timed before the search may end without one close to the floor
constexpr float kGain = 0.95f;                       ///< times the best so far: what is worth looking further
constexpr std::chrono::milliseconds kPatience{150};  ///< after which no further plan is built
constexpr int kRepeats = 5;
constexpr float kCloseEnough = 1.1f;     ///< times the floor
constexpr float kLaunch_ms = 0.003f;     ///< on top of it, whatever the work
constexpr float kStepsToPay = 1000;      ///< a further plan must be able to win back its time within so many steps
constexpr double kTypicalTrial_ms = 20;  ///< to build a plan and to time it

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

using Clock = std::chrono::steady_clock;

/// Milliseconds since this was asked last.
class Lap {
 public:
  double ms() {
    const Clock::time_point now = Clock::now();
    return std::chrono::duration<double, std::milli>(now - std::exchange(last_, now)).count();
  }

 private:
  Clock::time_point last_ = Clock::now();
};

EventHandle make_event() {
  cudaEvent_t event = nullptr;
  CUTTLE_CUDA(cudaEventCreate(&event));
  return EventHandle(event);
}

/// Median milliseconds of a few runs after one that is not counted.
float time_of(Context& context, const ConvRunner& runner, const ConvOperands& operands, SearchTrial& trial) {
  Lap lap;
  const EventHandle begin = make_event(), end = make_event();
  runner.run(context, operands);
  CUTTLE_CUDA(cudaStreamSynchronize(context.stream()));
  trial.first_ms = lap.ms();
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
  trial.timing_ms = lap.ms();
  trial.run_us = 1e3 * times[kRepeats / 2];
  return times[kRepeats / 2];
}

/// What to build, in the order of trying.
struct Candidate {
  graph::EngineConfig config;
  int fused;
};

/// Mode A's first few for every way of fusing, those that do most in one kernel first.
std::vector<Candidate> candidates_of(Context& context, const ConvKey& key, Attempts& attempts) {
  std::vector<Candidate> all;
  const int steps = GraphVariant::steps(key);
  for (int fused = steps; fused >= 0; --fused) {
    const GraphVariant variant{key, fused};
    std::vector<Candidate> last;
    std::int64_t taken = 0;
    const std::int64_t most = fused == steps ? key.measure_limit : kLessFusedProposals;
    try {
      const graph::OperationGraph graph = variant.build(context.cudnn());
      for (graph::Descriptor& proposal : graph::propose(graph, CUDNN_HEUR_MODE_A, kAsked)) {
        graph::EngineConfig config(std::move(proposal));
        const char* why = ruled_out(config, variant);
        // The heuristic's own choice may be worth the compiler's time, the others are not.
        if (!why && taken > 0 && config.is_compiled_at_runtime()) why = "it would be compiled at run time";
        if (why) {
          attempts.add(variant.label_of(config), why);
        } else if (is_last_resort(config, key)) {
          last.push_back({std::move(config), fused});
        } else if (taken < most) {
          all.push_back({std::move(config), fused});
          ++taken;
        }
      }
    } catch (const CudnnError& error) {
      attempts.add("cuDNN graph", error.cause());
    }
    for (Candidate& candidate : last) {
      if (taken++ < most) all.push_back(std::move(candidate));
    }
  }
  return all;
}

/// The best so far, and whether a search has gone on for long enough.
class Search {
 public:
  Search(Context& context, const ConvKey& key, const ConvOperands& operands, Tried& tried, SearchRecord& record)
      : context_(context),
        key_(key),
        operands_(operands),
        tried_(tried),
        record_(record),
        floor_ms_(floor_ms(context, key)) {
    record_.floor_us = 1e3 * floor_ms_;
  }

  void consider(ConvRunnerPtr runner, SearchTrial trial = {}) {
    if (!runner || tried_.failed.contains(runner->label()) || !seen_.insert(runner->label()).second) return;
    trial.name = runner->label();
    trial.workspace_bytes = runner->workspace_bytes();
    try {
      const float ms = time_of(context_, *runner, operands_, trial);
      ++timed_;
      is_gaining_ = !best_ || ms < kGain * best_ms_;
      if (!best_ || ms < best_ms_) best_ = std::move(runner), best_ms_ = ms;
    } catch (const Error& error) {
      trial.reason = error.cause();
      tried_.attempts.add(trial.name, trial.reason);
    }
    record_.trials.push_back(std::move(trial));
  }
  void consider(Candidate& candidate) {
    const GraphVariant variant{key_, candidate.fused};
    if (seen_.contains(variant.label_of(candidate.config))) return;
    SearchTrial trial{.name = variant.label_of(candidate.config),
                      .is_compiled_at_runtime = candidate.config.is_compiled_at_runtime()};
    Lap lap;
    try {
      graph::Plan plan(context_.cudnn(), std::move(candidate.config));
      trial.build_ms = lap.ms();
      if (key_.fits(plan.workspace_bytes())) return consider(graph_runner(variant, std::move(plan)), std::move(trial));
      trial.reason = Attempts::too_large(plan.workspace_bytes(), key_.workspace_limit);
    } catch (const Error& error) {
      trial.build_ms = lap.ms();
      trial.reason = error.cause();
    }
    tried_.attempts.add(trial.name, trial.reason);
    record_.trials.push_back(std::move(trial));
  }
  bool is_done() const {
    if (timed_ >= key_.measure_limit && !search_watch().to_the_end) return true;
    if (!best_ || search_watch().to_the_end) return false;
    const bool is_late = Clock::now() - begin_ > kPatience;
    const bool pays = (best_ms_ - floor_ms_) * kStepsToPay > trial_ms();
    return best_ms_ <= kCloseEnough * floor_ms_ + kLaunch_ms || !pays || is_late || (timed_ >= kLeast && !is_gaining_);
  }
  Chosen take() { return {std::move(best_), 1e3 * best_ms_}; }

 private:
  /// What another plan will cost: as much as those before it.
  double trial_ms() const {
    double sum = 0;
    int plans = 0;
    for (const SearchTrial& trial : record_.trials) {
      if (trial.build_ms == 0) continue;
      sum += trial.build_ms + trial.first_ms + trial.timing_ms;
      ++plans;
    }
    return plans == 0 ? kTypicalTrial_ms : sum / plans;
  }

  Context& context_;
  const ConvKey& key_;
  const ConvOperands& operands_;
  Tried& tried_;
  SearchRecord& record_;
  const float floor_ms_;
  const Clock::time_point begin_ = Clock::now();
  std::set<std::string> seen_;
  ConvRunnerPtr best_;
  float best_ms_ = 0;
  std::int64_t timed_ = 0;
  bool is_gaining_ = true;
};

}  // namespace

SearchWatch& search_watch() {
  static SearchWatch watch;
  return watch;
}

Chosen fastest_runner(Context& context, const ConvKey& key, const ConvOperands& operands,
                      const ConvRunnerPtr& incumbent, Tried& tried) {
  SearchRecord record;
  Lap whole, lap;
  ConvOperands scratch = operands;
  try {
    scratch.out = Tensor::empty(operands.out.shape(), operands.out.options());
  } catch (const Error& error) {
    tried.attempts.add("measuring", error.cause());
    return {};
  }
  record.scratch_ms = lap.ms();
  Search search(context, key, scratch, tried, record);
  search.consider(incumbent);
  if (!search.is_done()) search.consider(own_runner(context, key));
  if (key.cudnn && !search.is_done()) {
    lap.ms();
    std::vector<Candidate> candidates = candidates_of(context, key, tried.attempts);
    record.query_ms = lap.ms();
    for (Candidate& candidate : candidates) {
      if (search.is_done()) break;
      search.consider(candidate);
    }
  }
  Chosen best = search.take();
  if (search_watch().seen) {
    record.key = describe(key);
    record.total_ms = whole.ms();
    record.chosen = best.runner ? best.runner->label() : "";
    search_watch().seen(record);
  }
  return best;
}

}  // namespace cuttle::cuda
