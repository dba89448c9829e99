#include "cli/suggest.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

namespace cuttle::cli {
namespace {

/// Levenshtein's: insertions, deletions and replacements from a to b.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

std::vector<std::string> flags_of(const CLI::App& command) {
  std::vector<std::string> flags;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  return flags;
}

const CLI::App& command_in_use(const CLI::App& app) {
  const std::vector<CLI::App*> used = app.get_subcommands();
  return used.empty() ? app : *used.front();
}

/// The word that the parser did not know: it stands at the end of its message.
std::string unknown_word(const CLI::ParseError& error) {
  const std::string message = error.what();
  const std::size_t colon = message.find(": ");
  if (colon == std::string::npos) return {};
  const std::string rest = message.substr(colon + 2);
  return rest.substr(0, rest.find_first_of(" =,"));
}

}  // namespace

std::string closest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t least = std::max<std::size_t>(2, word.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = edit_distance(word, candidate);
    if (distance < least) {
      least = distance;
      best = candidate;
    }
  }
  return best;
}

std::string hint_for(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = command_in_use(app);
  const bool in_command = &command != &app;
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError) || !in_command) {
    std::vector<std::string> candidates = flags_of(command);
    if (!in_command) {
      for (const CLI::App* known : app.get_subcommands({})) candidates.push_back(known->get_name());
    }
    const std::string meant = closest(unknown_word(error), candidates);
    if (!meant.empty()) return fmt::format("did you mean {}?", meant);
  }
  return in_command ? fmt::format("cuttle {} --help lists its flags", command.get_name())
                    : std::string("cuttle --help lists the commands");
}

}  // namespace cuttle::cli
