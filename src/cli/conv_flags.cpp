#include "cli/conv_flags.hpp"

#include <fmt/format.h>

#include "cli/options.hpp"
#include "cuttle/error.hpp"

namespace cuttle::cli {
namespace {

/// Nothing for a flag that is not given.
std::optional<bool> parse_switch(const std::string& flag, const std::string& text) {
  if (text.empty()) return std::nullopt;
  if (text == "on" || text == "off") return text == "on";
  throw UsageError(fmt::format("{} '{}' is not known", flag, text), "choose from on, off");
}

/// A rule as --algo takes it, whatever variable it came from.
std::string text_of(const ConvRule& rule) {
  return rule.pass ? fmt::format("{}.{}={}", rule.layer, name_of(*rule.pass), rule.choices)
                   : fmt::format("{}={}", rule.layer, rule.choices);
}

}  // namespace

void add_conv_flags(CLI::App& command, ConvFlags& flags) {
  command
      .add_option("--conv", flags.policy,
                  "what chooses the algorithms of convolutions: heuristic, measure (times them), legacy (cuDNN's older "
                  "API), or gemm, which does without cuDNN")
      ->capture_default_str();
  command
      .add_option(
          "--algo", flags.algo,
          "algorithms by name: PASS=NAME, LAYER=NAME or LAYER.PASS=NAME, with PASS fwd, bwd_data or bwd_filter, "
          "'*' for any text in LAYER, and '|' between alternatives; may be given several times")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  command.add_option("--measure-limit", flags.measure_limit, "candidates that --conv measure times for a shape")
      ->capture_default_str();
  command.add_option("--workspace-limit", flags.workspace_limit, "most scratch memory of a convolution; may be 0");
  command.add_flag("--no-cudnn", flags.no_cudnn, "convolutions by Cuttle's own kernels alone");
  command.add_flag("--no-reduced-precision", flags.no_reduced_precision,
                   "no convolution adds up 16-bit products in 16 bits");
  command.add_option("--tf32-conv", flags.tf32,
                     "on or off: TF32 in convolutions of fp32; default: with --precision tf32");
  command.add_option("--tf32-matmul", flags.tf32_matmul, "the same for matrix products, as of linear layers");
  command.add_flag("--deterministic", flags.deterministic)
      ->description("equal runs give equal bits; on the CPU they do anyway, with any number of threads");
}

void put_into(train::TrainConfig& c, const ConvFlags& flags) {
  c.conv = train::parse_conv(flags.policy);
  c.algo.clear();
  for (const ConvRule& rule : conv_rules_from_environment()) c.algo.push_back(text_of(rule));
  c.algo.insert(c.algo.end(), flags.algo.begin(), flags.algo.end());
  c.measure_limit = flags.measure_limit;
  c.no_cudnn = flags.no_cudnn;
  c.no_reduced_precision = flags.no_reduced_precision;
  c.tf32_conv = parse_switch("--tf32-conv", flags.tf32);
  c.tf32_matmul = parse_switch("--tf32-matmul", flags.tf32_matmul);
  c.deterministic = flags.deterministic;
  if (!flags.workspace_limit.empty()) c.workspace_limit = parse_bytes("--workspace-limit", flags.workspace_limit, 0);
}

}  // namespace cuttle::cli
