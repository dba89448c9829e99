#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>

#include "core/text.hpp"
#include "cuttle/conv.hpp"
#include "cuttle/error.hpp"

namespace cuttle {
namespace {

// In the order of cuDNN's numbers; test cases compare them with its header.
constexpr std::array<std::string_view, 8> kForward{
    "IMPLICIT_GEMM", "IMPLICIT_PRECOMP_GEMM", "GEMM", "DIRECT", "FFT", "FFT_TILING", "WINOGRAD", "WINOGRAD_NONFUSED"};
constexpr std::array<std::string_view, 6> kBackwardData{"ALGO_0",     "ALGO_1",   "FFT",
                                                        "FFT_TILING", "WINOGRAD", "WINOGRAD_NONFUSED"};
constexpr std::array<std::string_view, 7> kBackwardFilter{
    "ALGO_0", "ALGO_1", "FFT", "ALGO_3", "WINOGRAD", "WINOGRAD_NONFUSED", "FFT_TILING"};
/// Not cuDNN's: of the GPU, then of the CPU.
constexpr std::array<std::string_view, 7> kOwn{"gemm",     "depthwise", "first_layer", "im2col",
                                               "gemm_1x1", "direct",    "auto"};

/// A whole number at the front of the text, which loses it.
bool take_number(std::string_view& text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

/// engine:N, or engine:N,kI=V,kJ=W...
bool is_engine(std::string_view name) {
  if (!take_prefix(name, "engine:") || !take_number(name)) return false;
  while (!name.empty()) {
    if (!take_prefix(name, ",k") || !take_number(name) || !take_prefix(name, "=") || !take_number(name)) return false;
  }
  return true;
}

void check_name(ConvPass pass, std::string_view name, std::string_view list) {
  const std::span<const std::string_view> legacy = legacy_algorithms(pass);
  const auto is = [&](std::string_view known) { return known == name; };
  if (std::ranges::any_of(legacy, is) || std::ranges::any_of(kOwn, is) || is_engine(name)) return;
  const std::string what = name.empty() ? "an empty name" : fmt::format("'{}'", name);
  throw UsageError(fmt::format("{} in '{}' is no algorithm of {}", what, list, name_of(pass)),
                   fmt::format("there are {}, engines of cuDNN's graph API as engine:65 or engine:65,k2=5, and {}",
                               fmt::join(legacy, ", "), fmt::join(kOwn, ", ")));
}

}  // namespace

std::string_view name_of(ConvPass pass) {
  switch (pass) {
    case ConvPass::forward: return "forward";
    case ConvPass::backward_data: return "backward_data";
    case ConvPass::backward_filter: break;
  }
  return "backward_filter";
}

const std::string& ConvAlgorithms::of(ConvPass pass) const {
  return pass == ConvPass::forward ? forward : pass == ConvPass::backward_data ? backward_data : backward_filter;
}

std::string& ConvAlgorithms::of(ConvPass pass) {
  return const_cast<std::string&>(static_cast<const ConvAlgorithms&>(*this).of(pass));
}

ConvChoice::ConvChoice(ConvAlgorithms wanted, std::string layer)
    : wanted_(std::move(wanted)), layer_(std::move(layer)) {
  for (const ConvPass pass : kConvPasses) parse_choices(pass, wanted_.of(pass));
}

ConvAlgorithms ConvChoice::used() const {
  const std::lock_guard lock(mutex_);
  return used_;
}

void ConvChoice::set_used(ConvPass pass, const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (used_.of(pass) != name) used_.of(pass) = name;
}

std::span<const std::string_view> legacy_algorithms(ConvPass pass) {
  switch (pass) {
    case ConvPass::forward: return kForward;
    case ConvPass::backward_data: return kBackwardData;
    case ConvPass::backward_filter: break;
  }
  return kBackwardFilter;
}

std::vector<std::string> parse_choices(ConvPass pass, std::string_view list) {
  std::vector<std::string> names;
  if (list.empty()) return {"auto"};
  for (const std::string_view name : split(list, '|')) {
    check_name(pass, name, list);
    names.emplace_back(name);
  }
  return names;
}

}  // namespace cuttle
