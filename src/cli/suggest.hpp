#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "cuttle/error.hpp"

namespace cuttle::cli {

/// The candidate that differs from `word` by the fewest typed characters; empty if none is near.
std::string closest(std::string_view word, const std::vector<std::string>& candidates);

/// What the parser found wrong, in our words, with the flag or command that was probably meant.
UsageError usage_error(const CLI::App& app, const CLI::ParseError& error);

}  // namespace cuttle::cli
