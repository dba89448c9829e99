#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "train/config.hpp"

namespace cuttle::cli {

/// How convolutions are computed.
struct ConvFlags {
  std::string policy = "heuristic", workspace_limit, tf32, tf32_matmul;
  std::vector<std::string> algo;
  std::int64_t measure_limit = 10;
  bool no_cudnn = false, no_reduced_precision = false, deterministic = false;
};
void add_conv_flags(CLI::App& command, ConvFlags& flags);
/// What the flags and the environment say, in the configuration. Throws UsageError on an impossible value.
void put_into(train::TrainConfig& config, const ConvFlags& flags);

}  // namespace cuttle::cli
