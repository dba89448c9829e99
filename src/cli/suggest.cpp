#include "cli/suggest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "cli/values.hpp"

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

/// The first flag that the parser did not know, or else the first word.
std::string unknown_word(const CLI::App& command) {
  const std::vector<std::string> words = command.remaining();
  const auto flag = std::ranges::find_if(words, [](const std::string& word) { return word.starts_with("-"); });
  return flag != words.end() ? *flag : words.empty() ? std::string() : words.front();
}

std::string no_such(const std::string& word, const CLI::App& command, bool in_command) {
  if (word.starts_with("-")) {
    return in_command ? fmt::format("'{}' is not a flag of cuttle {}", word, command.get_name())
                      : fmt::format("'{}' is not a flag of cuttle", word);
  }
  return in_command ? fmt::format("cuttle {} takes no argument '{}'", command.get_name(), word)
                    : fmt::format("there is no command '{}'", word);
}

/// The option that the parser's message names; nullptr if it names none.
const CLI::Option* named_in(const std::string& message, const CLI::App& command) {
  const CLI::Option* longest = nullptr;
  for (const CLI::Option* option : command.get_options()) {
    const bool named = option->count() > 0 && message.find(option->get_name()) != std::string::npos;
    if (named && (!longest || option->get_name().size() > longest->get_name().size())) longest = option;
  }
  return longest;
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

UsageError usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = command_in_use(app);
  const bool in_command = &command != &app;
  const std::string where_to_look = in_command ? fmt::format("cuttle {} --help lists its flags", command.get_name())
                                               : std::string("cuttle --help lists the commands");
  const std::string word = unknown_word(command);
  const int kind = error.get_exit_code();
  if (kind == static_cast<int>(CLI::ExitCodes::ConversionError)) {
    if (const CLI::Option* option = named_in(error.what(), command))
      return not_a_value(*option, option->results().back());
  }
  // A command that does not exist is reported as one that is missing.
  const bool is_unknown = kind == static_cast<int>(CLI::ExitCodes::ExtrasError) ||
                          (!in_command && kind == static_cast<int>(CLI::ExitCodes::RequiredError));
  if (!is_unknown || word.empty()) return UsageError(error.what(), where_to_look);

  std::vector<std::string> candidates = flags_of(command);
  if (!in_command) {
    for (const CLI::App* known : app.get_subcommands({})) candidates.push_back(known->get_name());
  }
  const std::string meant = closest(word, candidates);
  return UsageError(no_such(word, command, in_command),
                    meant.empty() ? where_to_look : fmt::format("did you mean {}? {}", meant, where_to_look));
}

}  // namespace cuttle::cli
