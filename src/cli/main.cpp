#include <fmt/format.h>

#include <new>

#include "cli/commands.hpp"
#include "cli/output.hpp"
#include "cli/suggest.hpp"
#include "cli/values.hpp"
#include "cuttle/error.hpp"
#include "cuttle/version.hpp"

namespace {

enum ExitCode { kDone = 0, kFailed = 1, kUsage = 2, kOutOfMemory = 3, kBadInput = 4 };

int report(const cuttle::Error& error, ExitCode code) {
  cuttle::cli::output().flush();
  cuttle::cli::warn("cuttle: {}", error.what());
  return code;
}

/// Runs the command on the line, or prints the help that it asks for.
void execute(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    app.exit(help, cuttle::cli::output());
    cuttle::cli::deliver();
  }
}

int run(CLI::App& app, int argc, char** argv) {
  try {
    execute(app, argc, argv);
    return kDone;
  } catch (const CLI::RuntimeError& error) {
    return error.get_exit_code();
  } catch (const CLI::ParseError& error) {
    return report(cuttle::cli::usage_error(app, error), kUsage);
  } catch (const cuttle::UsageError& error) {
    return report(error, kUsage);
  } catch (const cuttle::OutOfMemoryError& error) {
    return report(error, kOutOfMemory);
  } catch (const cuttle::DataError& error) {
    return report(error, kBadInput);
  } catch (const cuttle::CheckpointError& error) {
    return report(error, kBadInput);
  } catch (const cuttle::Error& error) {
    return report(error, kFailed);
  } catch (const std::bad_alloc&) {
    return report(cuttle::OutOfMemoryError("the system has no more memory for this process",
                                           "take a smaller --batch or --size, or end other programs"),
                  kOutOfMemory);
  } catch (const std::exception& error) {
    return report(cuttle::Error(error.what()), kFailed);
  }
}

}  // namespace

int main(int argc, char** argv) {
  cuttle::cli::prepare_streams();
  CLI::App app("Trains convolutional image classifiers", "cuttle");
  app.set_version_flag("--version", fmt::format("cuttle {}", cuttle::kVersion));
  app.require_subcommand(1);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);  // a script's flag can be overridden
  app.footer(
      "cuttle COMMAND --help lists the flags of a command.\n"
      "Exit codes: 0 done, 2 usage, 3 out of memory, 4 bad data or checkpoint, 1 anything else;\n"
      "130, 143 or 129 if Ctrl-C, a terminate or a hang-up signal ended it.");
  cuttle::cli::add_train(app, argc > 0 ? argv[0] : "cuttle");
  cuttle::cli::add_eval(app);
  cuttle::cli::add_predict(app);
  cuttle::cli::add_bench(app);
  cuttle::cli::add_doctor(app);
  cuttle::cli::refuse_bad_values(app);
  return run(app, argc, argv);
}
