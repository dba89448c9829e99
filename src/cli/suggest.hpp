#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace cuttle::cli {

/// The candidate that differs from `word` by the fewest typed characters; empty if none is near.
std::string closest(std::string_view word, const std::vector<std::string>& candidates);

/// What helps after this error: the flag or command that was probably meant, or where the flags are listed.
std::string hint_for(const CLI::App& app, const CLI::ParseError& error);

}  // namespace cuttle::cli
