#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/interrupt.hpp"
#include "cli/options.hpp"
#include "cli/output.hpp"
#include "cuttle/error.hpp"
#include "cuttle/models.hpp"
#include "report/report.hpp"
#include "train/console_sink.hpp"
#include "train/json_sink.hpp"
#include "train/run_folder.hpp"
#include "train/trainer.hpp"

namespace cuttle::cli {
namespace {

struct TrainFlags {
  train::TrainConfig config;
  DeviceFlags device;
  std::string optimizer = "sgd", schedule = "one-cycle", augment = "none";
  std::string out, resume, program;
};

void add_flags(CLI::App& command, TrainFlags& flags) {
  train::TrainConfig& c = flags.config;
  command.add_option("--model", c.model, "architecture")->capture_default_str();
  command.add_option("--data", c.data, "folder of a data set, or synthetic; default: the shipped data/mnist");
  command.add_option("--size", c.size, "resize images to SIZE x SIZE; default: as they are");
  command.add_option("--weights", c.weights, "start from the weights in this file");
  command.add_option("--out", flags.out, "folder for weights, state, metrics and report; default: out/MODEL");
  command.add_option("--resume", flags.resume, "go on with the run in this folder, with its settings");

  command.add_option("--epochs", c.epochs, "times to go through the training images; default: 2");
  command.add_option("--steps", c.steps, "end after so many optimizer steps; the schedule stays that of --epochs");
  add_batch_flag(command, c.batch, "images in memory at once; a single image left over joins the last");
  command.add_option("--accumulate", c.accumulate, "batches that make one optimizer step")->capture_default_str();
  command.add_option("--optimizer", flags.optimizer, "sgd or adamw")->capture_default_str();
  command.add_option("--lr", c.lr, "highest learning rate; default: 0.05 for sgd, 0.002 for adamw");
  command.add_option("--momentum", c.momentum, "of sgd")->capture_default_str();
  command.add_option("--weight-decay", c.weight_decay, "default: 0.0005 for sgd, 0.01 for adamw");
  command.add_option("--label-smoothing", c.label_smoothing, "share of the target spread over all classes")
      ->capture_default_str();
  command
      .add_option("--schedule", flags.schedule,
                  "learning rate over the run: constant, step (a tenth after each third), cosine or one-cycle")
      ->capture_default_str();
  command.add_option("--warmup", c.warmup, "steps of linear rise before the schedule")->capture_default_str();
  command.add_option("--clip-grad-norm", c.clip_grad_norm, "scale gradients down to this norm; 0: never")
      ->capture_default_str();
  command.add_option("--seed", c.seed, "of weights, order and dropout")->capture_default_str();
  command.add_option("--augment", flags.augment, "of training images: none or crop-flip (shifts and mirrors)")
      ->capture_default_str();
  add_recompute_flag(command);
  add_graph_flag(command, c.graph);
  add_device_flags(command, flags.device);
}

/// Brings the flags that are kept as text into the configuration.
void complete(TrainFlags& flags) {
  train::TrainConfig& c = flags.config;
  c.optimizer = train::parse_optimizer(flags.optimizer);
  c.schedule = train::parse_schedule(flags.schedule);
  c.augment = train::parse_augment(flags.augment);
  put_into(c, flags.device);
  train::validate(c);
  apply_threads(c.threads);
}

/// Names, without dashes, of the flags that stand on the command line. Rules in the environment are flags too.
std::vector<std::string> given_flags(const CLI::App& command) {
  std::vector<std::string> names;
  if (!conv_rules_from_environment().empty()) names.push_back("algo");
  for (const CLI::Option* option : command.get_options()) {
    if (option->count() > 0 && !option->get_lnames().empty()) names.push_back(option->get_lnames().front());
  }
  return names;
}

/// out/MODEL, or the first of out/MODEL-2, -3... that holds no run: a default never overwrites.
std::string free_folder(const std::string& model) {
  const std::string base = (std::filesystem::path("out") / model).string();
  std::string folder = base;
  for (int i = 2; std::filesystem::exists(folder); ++i) folder = fmt::format("{}-{}", base, i);
  return folder;
}

std::string quoted(const std::string& word) {
  if (word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=+,") ==
      std::string::npos) {
    return word;
  }
  std::string result = "'";
  for (const char c : word) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

std::string resume_command(const TrainFlags& flags, const std::string& out) {
  return quoted(flags.program) + " train --resume " + quoted(out);
}

int terminal_columns() {
  if (!isatty(STDOUT_FILENO)) return 0;
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
  return size.ws_col;
}

std::unique_ptr<train::EventSink> make_console(const TrainFlags& flags, const std::string& out) {
  if (flags.device.json) return std::make_unique<train::JsonSink>(output());
  return std::make_unique<train::ConsoleSink>(
      output(),
      train::ConsoleSink::Options{.columns = terminal_columns(), .resume_command = resume_command(flags, out)});
}

/// Says on stderr what people have to know.
class Notices final : public train::EventSink {
 public:
  void noticed(const std::string& text) override { warn("{}", text); }
  void started(const train::StartEvent& event) override {
    if (event.previous_run.empty()) return;
    warn("{} held a run; it is now in {}", event.out, event.previous_run);
  }
};

bool same_folder(const std::string& a, const std::string& b) {
  std::error_code error;
  return std::filesystem::equivalent(a, b, error);
}

train::RunState load_state(const std::string& folder) {
  const std::string file = train::state_file_of(folder);
  if (!std::filesystem::exists(file)) {
    throw CheckpointError(fmt::format("there is no run in {}: {} is not there", folder, file),
                          "name the folder that a run was started in");
  }
  return train::load_run_state(file);
}

/// Another number of epochs moves the rest of the run to another curve.
void say_if_stretched(const train::RunState& state, const train::TrainConfig& next) {
  const train::TrainConfig& started = state.config;
  if (next.epochs == started.epochs || next.schedule == train::ScheduleKind::constant) return;
  const std::int64_t step = state.progress.step;
  warn("the {} schedule now spans {} epochs, not {}: lr was {:.3g} at step {}, and is {:.3g} at the next",
       train::name_of(next.schedule), next.epochs.value(), started.epochs.value(),
       train::make_schedule(started, state.train_images)(std::max<std::int64_t>(0, step - 1)), step,
       train::make_schedule(next, state.train_images)(step));
}

bool reader_is_gone() { return output_error() == EPIPE; }

/// A run that was cut short ends with the code that a shell gives to a process that the signal ended.
void conclude(const train::EndEvent& end, const std::string& resume_command) {
  const bool cut_short = end.ending == train::Ending::interrupted;
  if (cut_short && stop_signal() != 0) throw CLI::RuntimeError(128 + stop_signal());
  output().flush();
  if (output_error() == 0) return;
  const std::string lost = fmt::format("stdout cannot be written ({})", std::strerror(output_error()));
  if (cut_short) {
    throw IoError(fmt::format("{}, so the run was stopped, and saved after step {}", lost, end.step),
                  "to go on: " + resume_command);
  }
  warn("{}: what was to be printed is lost, the run in {} is whole", lost, end.out);
}

void run(TrainFlags flags, const std::vector<std::string>& given) {
  complete(flags);
  std::optional<train::RunState> state;
  if (!flags.resume.empty()) {
    state = load_state(flags.resume);
    const train::TrainConfig next = train::resumed_config(state->config, flags.config, given);
    train::check_goes_on(next, state->progress, state->train_images);
    say_if_stretched(*state, next);
    state->config = next;
    state->config.graph = flags.config.graph;
  }
  train::TrainConfig& config = state ? state->config : flags.config;
  config.data = data_or_default(config.data);
  const std::string out = !flags.out.empty() ? flags.out : state ? flags.resume : free_folder(config.model);

  const WantedImages wanted =
      config.data == "synthetic" ? wanted_by_model(config.model, config.size) : WantedImages{.size = config.size};
  models::find(config.model);
  const data::ImageSet train_set = open_images(config.data, data::Split::train, wanted);
  const data::ImageSet test_set = open_images(config.data, data::Split::test, wanted);
  train::check_precision(config.precision, parse_device(config.device));
  say_if_no_gpu(config.device);

  catch_interrupts();
  train::MetricsFile metrics(train::metrics_file_of(out), state ? train::metrics_file_of(flags.resume) : std::string());
  report::ReportSink report(train::report_file_of(out), train::metrics_file_of(out), test_set);
  const std::unique_ptr<train::EventSink> console = make_console(flags, out);
  Notices notices;
  train::Trainer::Options options{.out = out,
                                  .sinks = {&notices, &metrics, &report, console.get()},
                                  .stop_requested = [] { return stop_signal() != 0 || reader_is_gone(); },
                                  .continues = state && same_folder(out, flags.resume)};
  try {
    const train::EndEvent end = state ? train::Trainer(*state, train_set, test_set, std::move(options)).run()
                                      : train::Trainer(config, train_set, test_set, std::move(options)).run();
    conclude(end, resume_command(flags, out));
  } catch (const ShapeError& error) {
    throw unsuitable_size(config.model, train_set.height, error);
  }
}

}  // namespace

void add_train(CLI::App& app, const std::string& program) {
  CLI::App* command = app.add_subcommand("train", "Train a model and keep everything in a folder");
  const auto flags = std::make_shared<TrainFlags>();
  flags->program = program;
  add_flags(*command, *flags);
  command->callback([flags, command] { run(*flags, given_flags(*command)); });
}

}  // namespace cuttle::cli
