#include "cli/values.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <string_view>

namespace cuttle::cli {
namespace {

std::string_view allowed_for(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (type == "INT") return "it takes a whole number";
  if (type == "UINT") return "it takes a whole number of at least 0";
  return "it takes a number";
}

template <class Int> bool is_whole_number(std::string_view text) {
  Int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

void refuse_bad_value(const CLI::Option& option, const std::string& value) {
  if (value.empty()) {
    throw UsageError(fmt::format("{} is given without a value", option.get_name()), "give it a value, or leave it out");
  }
  const std::string type = option.get_type_name();
  const bool fits = type == "INT"    ? is_whole_number<std::int64_t>(value)
                    : type == "UINT" ? is_whole_number<std::uint64_t>(value)
                                     : true;
  if (!fits) throw not_a_value(option, value);
}

}  // namespace

UsageError not_a_value(const CLI::Option& option, const std::string& value) {
  return UsageError(fmt::format("{} '{}' is not possible", option.get_name(), value),
                    fmt::format("{}", allowed_for(option)));
}

void refuse_bad_values(CLI::App& app) {
  for (CLI::App* command : app.get_subcommands({})) {
    for (CLI::Option* option : command->get_options()) {
      if (option->get_items_expected_max() == 0) continue;  // a flag
      const auto refuse = [option](const std::string& value) {
        refuse_bad_value(*option, value);
        return std::string();
      };
      option->check(CLI::Validator(refuse, ""));
    }
  }
}

}  // namespace cuttle::cli
