#pragma once
#include <CLI/CLI.hpp>
#include <string>

namespace cuttle::cli {

/// Each adds one command to the app; the command runs while the app parses. `program` is what the user called.
void add_train(CLI::App& app, const std::string& program);
void add_eval(CLI::App& app);
void add_predict(CLI::App& app);
void add_bench(CLI::App& app);
void add_doctor(CLI::App& app);

}  // namespace cuttle::cli
