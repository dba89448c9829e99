#pragma once
#include <CLI/CLI.hpp>
#include <string>

#include "cuttle/error.hpp"

namespace cuttle::cli {

/// Names the option, the value and what is allowed.
UsageError not_a_value(const CLI::Option& option, const std::string& value);

/// From now on every option of every command throws UsageError on an empty value, and options of whole numbers on one
/// that is none or that 64 bits do not hold: the parser would take 0, the largest number or a negative one modulo 2^64.
void refuse_bad_values(CLI::App& app);

}  // namespace cuttle::cli
