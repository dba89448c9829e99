// What the search for the fastest convolutions does in a model's first step, one JSON line a convolution, then totals.
// usage: search_bench MODEL BATCH fp32|tf32|fp16|bf16 [heuristic|measured|all]
//   all: every candidate of every convolution is timed, so that other ways to search can be tried out on the figures.
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "cuda/conv/search_record.hpp"
#include "cuttle/conv.hpp"
#include "cuttle/cuttle.hpp"

using namespace cuttle;

namespace {

nlohmann::ordered_json json_of(const cuda::SearchRecord& r) {
  nlohmann::ordered_json trials = nlohmann::ordered_json::array();
  for (const cuda::SearchTrial& t : r.trials) {
    nlohmann::ordered_json trial = {{"name", t.name},         {"build_ms", t.build_ms},
                                    {"first_ms", t.first_ms}, {"timing_ms", t.timing_ms},
                                    {"time_us", t.run_us},    {"workspace_bytes", t.workspace_bytes}};
    if (t.is_compiled_at_runtime) trial["compiled"] = true;
    if (!t.reason.empty()) trial["reason"] = t.reason;
    trials.push_back(std::move(trial));
  }
  return {{"key", r.key},           {"floor_us", r.floor_us}, {"scratch_ms", r.scratch_ms}, {"query_ms", r.query_ms},
          {"total_ms", r.total_ms}, {"chosen", r.chosen},     {"trials", std::move(trials)}};
}

void run(const std::string& name, std::int64_t batch, const std::string& precision, const std::string& how) {
  const Device device = best_device();
  set_conv_settings(
      {.policy = how == "heuristic" ? ConvPolicy::heuristic : ConvPolicy::measure, .tf32 = precision == "tf32"});
  std::int64_t searches = 0;
  double searched_ms = 0;
  cuda::search_watch() = {.to_the_end = how == "all", .seen = [&](const cuda::SearchRecord& record) {
                            fmt::print("{}\n", json_of(record).dump());
                            ++searches;
                            searched_ms += record.total_ms;
                          }};
  const models::ModelInfo& info = models::find(name);
  const auto net = info.make(info.channels, info.size, info.classes);
  net->to(device);
  const DType dtype = precision == "fp16" ? DType::f16 : precision == "bf16" ? DType::bf16 : DType::f32;
  const Tensor x = Tensor::randn({batch, info.channels, info.size, info.size}, {.dtype = dtype, .device = device});
  const Tensor labels = Tensor::zeros({batch}, {.dtype = DType::i64, .device = device});
  synchronize(device);

  for (int step = 0; step < 3; ++step) {
    const auto begin = std::chrono::steady_clock::now();
    cross_entropy((*net)(x), labels).backward();
    synchronize(device);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    fmt::print(stderr, "{} {} {} {}: step {} took {:.3f} s; {} searches so far, {:.3f} s in them\n", name, batch,
               precision, how, step, taken.count(), searches, searched_ms / 1e3);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    fmt::print(stderr, "usage: search_bench MODEL BATCH fp32|tf32|fp16|bf16 [heuristic|measured|all]\n");
    return 2;
  }
  try {
    run(argv[1], std::atoll(argv[2]), argv[3], argc > 4 ? argv[4] : "measured");
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
