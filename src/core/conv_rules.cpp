#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "core/text.hpp"
#include "cuttle/conv.hpp"
#include "cuttle/error.hpp"

namespace cuttle {
namespace {

constexpr std::array<std::string_view, 3> kShortNames{"fwd", "bwd_data", "bwd_filter"};

std::optional<ConvPass> find_pass(std::string_view name) {
  for (const ConvPass pass : kConvPasses) {
    if (name == name_of(pass) || name == kShortNames[static_cast<std::size_t>(pass)]) return pass;
  }
  return std::nullopt;
}

/// Whether some pass knows every name of the list.
void check_choices(const ConvRule& rule) {
  if (rule.pass) {
    parse_choices(*rule.pass, rule.choices);
    return;
  }
  for (const ConvPass pass : kConvPasses) {
    try {
      parse_choices(pass, rule.choices);
      return;
    } catch (const UsageError&) {
      if (pass == kConvPasses.back()) throw;
    }
  }
}

std::string from_environment(const char* variable) {
  const char* value = std::getenv(variable);
  return value ? value : "";
}

/// "1,0" -> "IMPLICIT_PRECOMP_GEMM|IMPLICIT_GEMM"
std::string names_of_numbers(ConvPass pass, std::string_view variable, std::string_view numbers) {
  const std::span<const std::string_view> names = legacy_algorithms(pass);
  std::string list;
  for (const std::string_view text : split(numbers, ',')) {
    std::size_t number = names.size();
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size() || number >= names.size()) {
      std::vector<std::string> known;
      for (std::size_t i = 0; i < names.size(); ++i) known.push_back(fmt::format("{} {}", i, names[i]));
      throw UsageError(fmt::format("'{}' in {}={} is no number of an algorithm", text, variable, numbers),
                       fmt::format("give numbers with ',' between them: {}", fmt::join(known, ", ")));
    }
    if (!list.empty()) list += '|';
    list += names[number];
  }
  return list;
}

}  // namespace

ConvRule parse_conv_rule(std::string_view text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0 || equals + 1 == text.size()) {
    throw UsageError(fmt::format("'{}' names no algorithm", text),
                     "write PASS=NAME, LAYER=NAME or LAYER.PASS=NAME: fwd=IMPLICIT_PRECOMP_GEMM, conv1=gemm");
  }
  const std::string_view place = text.substr(0, equals);
  ConvRule rule{
      .layer = std::string(place), .choices = std::string(text.substr(equals + 1)), .text = std::string(text)};
  const std::size_t dot = place.rfind('.');
  if (const auto pass = find_pass(place)) {
    rule.layer = "*";
    rule.pass = pass;
  } else if (dot != std::string_view::npos) {
    rule.pass = find_pass(place.substr(dot + 1));
    if (rule.pass) rule.layer = place.substr(0, dot);
  }
  try {
    check_choices(rule);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("'{}': {}", text, error.cause()), error.hint());
  }
  return rule;
}

std::vector<ConvRule> conv_rules_from_environment() {
  std::vector<ConvRule> rules;
  constexpr std::array kVariables{"CUDNN_CONV_ALGO_FWD", "CUDNN_CONV_ALGO_BWD_DATA", "CUDNN_CONV_ALGO_BWD_FILTER"};
  for (const ConvPass pass : kConvPasses) {
    const char* variable = kVariables[static_cast<std::size_t>(pass)];
    const std::string numbers = from_environment(variable);
    if (numbers.empty()) continue;
    rules.push_back({.pass = pass,
                     .choices = names_of_numbers(pass, variable, numbers),
                     .text = fmt::format("{}={}", variable, numbers)});
  }
  const std::string given = from_environment("CUTTLE_CONV_ALGO");
  if (given.empty()) return rules;
  for (const std::string_view text : split(given, ';')) {
    try {
      if (!text.empty()) rules.push_back(parse_conv_rule(text));
    } catch (const UsageError& error) {
      throw UsageError(fmt::format("CUTTLE_CONV_ALGO: {}", error.cause()), error.hint());
    }
  }
  return rules;
}

}  // namespace cuttle
