#include <fmt/format.h>

#include "cuttle/error.hpp"
#include "cuttle/nn.hpp"

namespace cuttle::nn {
namespace {

/// Whether the name is the pattern's, in which '*' stands for any text: a mismatch goes back to the latest '*' only.
bool fits(std::string_view pattern, std::string_view name) {
  constexpr std::size_t kNone = std::string_view::npos;
  std::size_t p = 0, n = 0, star = kNone, matched = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      matched = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p, ++n;
    } else if (star != kNone) {
      p = star + 1;
      n = ++matched;
    } else {
      return false;
    }
  }
  return pattern.find_first_not_of('*', p) == kNone;
}

/// Whether this pass has all the names that a rule for every pass gives.
bool knows(ConvPass pass, const ConvRule& rule) {
  try {
    parse_choices(pass, rule.choices);
    return true;
  } catch (const UsageError&) {
    if (rule.pass) throw;
    return false;
  }
}

}  // namespace

void apply_conv_rules(Module& model, std::span<const ConvRule> rules) {
  std::vector<std::pair<std::string, Conv2d*>> layers;
  for (const auto& [name, module] : model.named_modules()) {
    if (auto* conv = dynamic_cast<Conv2d*>(module)) layers.emplace_back(name, conv);
  }
  for (const ConvRule& rule : rules) {
    bool found = false;
    for (const auto& [name, conv] : layers) {
      if (!fits(rule.layer, name)) continue;
      found = true;
      ConvAlgorithms wanted = conv->options().algorithms;
      for (const ConvPass pass : kConvPasses) {
        if ((!rule.pass || rule.pass == pass) && knows(pass, rule)) wanted.of(pass) = rule.choices;
      }
      conv->set_algorithms(std::move(wanted), name);
    }
    if (found) continue;
    std::string names;
    for (const auto& [name, conv] : layers) names += (names.empty() ? "" : ", ") + name;
    throw UsageError(fmt::format("'{}': the model has no convolution '{}'", rule.text, rule.layer),
                     names.empty() ? "it has none at all" : "there are " + names);
  }
}

}  // namespace cuttle::nn
