#include "train/config.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <concepts>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <type_traits>
#include <utility>

#include "core/text.hpp"
#include "cuttle/error.hpp"
#include "cuttle/matmul.hpp"
#include "cuttle/threads.hpp"
#include "data/batch_count.hpp"
#include "io/json.hpp"

namespace cuttle::train {
namespace {

constexpr std::int64_t kDefaultEpochs = 2;
// Far above any use, and small enough that no product of them and of a set's size overflows.
constexpr std::int64_t kMostEpochs = 1'000'000, kMostSteps = 1'000'000'000'000;
constexpr std::int64_t kMostBatch = std::int64_t{1} << 31;
constexpr std::int64_t kMostCandidates = 10'000;

template <class T> using Choice = std::pair<std::string_view, T>;

constexpr std::array<Choice<OptimizerKind>, 2> kOptimizers{
    {{"sgd", OptimizerKind::sgd}, {"adamw", OptimizerKind::adamw}}};
constexpr std::array<Choice<ScheduleKind>, 4> kSchedules{{{"constant", ScheduleKind::constant},
                                                          {"step", ScheduleKind::step},
                                                          {"cosine", ScheduleKind::cosine},
                                                          {"one-cycle", ScheduleKind::one_cycle}}};
constexpr std::array<Choice<Precision>, 4> kPrecisions{
    {{"fp32", Precision::fp32}, {"tf32", Precision::tf32}, {"fp16", Precision::fp16}, {"bf16", Precision::bf16}}};
constexpr std::array<Choice<Augment>, 2> kAugments{{{"none", Augment::none}, {"crop-flip", Augment::crop_flip}}};
constexpr std::array<Choice<ConvPolicy>, 4> kConvPolicies{{{"heuristic", ConvPolicy::heuristic},
                                                           {"measure", ConvPolicy::measure},
                                                           {"legacy", ConvPolicy::legacy},
                                                           {"gemm", ConvPolicy::gemm}}};

template <class T> std::string_view find_name(std::span<const Choice<T>> choices, T value) {
  for (const auto& [name, known] : choices) {
    if (known == value) return name;
  }
  return "?";
}

template <class T> T find_value(std::string_view flag, std::span<const Choice<T>> choices, std::string_view text) {
  std::vector<std::string_view> names;
  for (const auto& [name, value] : choices) {
    if (name == text) return value;
    names.push_back(name);
  }
  throw UsageError(fmt::format("{} '{}' is not known", flag, text),
                   fmt::format("choose from {}", fmt::join(names, ", ")));
}

void require(bool holds, std::string_view flag, const std::string& value, std::string_view rule) {
  if (!holds) throw UsageError(fmt::format("{} {} is not possible", flag, value), fmt::format("{} {}", flag, rule));
}

template <std::integral T>
void require_within(std::string_view flag, T value, std::type_identity_t<T> least, std::type_identity_t<T> most) {
  require(value >= least && value <= most, flag, fmt::format("{}", value),
          fmt::format("must be within {} and {}", least, most));
}

void require_not_negative(std::string_view flag, double value) {
  require(std::isfinite(value) && value >= 0, flag, fmt::format("{}", value), "must be a number of at least 0");
}

void require_fraction(std::string_view flag, double value) {
  require(value >= 0 && value < 1, flag, fmt::format("{}", value), "must be at least 0 and below 1");
}

/// The one list of settings and their keys: what is saved is what is read again.
template <class Config, class Visit> void for_each_setting(Config& c, Visit visit) {
  visit("model", c.model);
  visit("data", c.data);
  visit("size", c.size);
  visit("weights", c.weights);
  visit("epochs", c.epochs);
  visit("steps", c.steps);
  visit("batch", c.batch);
  visit("accumulate", c.accumulate);
  visit("optimizer", c.optimizer);
  visit("lr", c.lr);
  visit("momentum", c.momentum);
  visit("weight-decay", c.weight_decay);
  visit("label-smoothing", c.label_smoothing);
  visit("schedule", c.schedule);
  visit("warmup", c.warmup);
  visit("clip-grad-norm", c.clip_grad_norm);
  visit("augment", c.augment);
  visit("device", c.device);
  visit("precision", c.precision);
  visit("tf32-conv", c.tf32_conv);
  visit("tf32-matmul", c.tf32_matmul);
  visit("conv", c.conv);
  visit("algo", c.algo);
  visit("measure-limit", c.measure_limit);
  visit("no-cudnn", c.no_cudnn);
  visit("no-reduced-precision", c.no_reduced_precision);
  visit("deterministic", c.deterministic);
  visit("memory-limit", c.memory_limit);
  visit("workspace-limit", c.workspace_limit);
  visit("threads", c.threads);
  visit("seed", c.seed);
}

template <class T> void put(nlohmann::ordered_json& json, const char* key, const T& value) {
  if constexpr (std::is_enum_v<T>) {
    json[key] = name_of(value);
  } else {
    json[key] = value;
  }
}

template <class T> void put(nlohmann::ordered_json& json, const char* key, const std::optional<T>& value) {
  if (value) json[key] = *value;
}

void parse(const std::string& text, OptimizerKind& kind) { kind = parse_optimizer(text); }
void parse(const std::string& text, ScheduleKind& kind) { kind = parse_schedule(text); }
void parse(const std::string& text, Precision& precision) { precision = parse_precision(text); }
void parse(const std::string& text, Augment& augment) { augment = parse_augment(text); }
void parse(const std::string& text, ConvPolicy& path) { path = parse_conv(text); }

template <class T> void take(const nlohmann::ordered_json& json, const char* key, T& value) {
  if constexpr (std::is_enum_v<T>) {
    parse(json.at(key).get<std::string>(), value);
  } else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
    value = whole_number<T>(json, key);
  } else {
    json.at(key).get_to(value);
  }
}

template <class T> void take(const nlohmann::ordered_json& json, const char* key, std::optional<T>& value) {
  take(json, key, value.emplace());
}

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

}  // namespace

std::string_view name_of(OptimizerKind kind) { return find_name<OptimizerKind>(kOptimizers, kind); }
std::string_view name_of(ScheduleKind kind) { return find_name<ScheduleKind>(kSchedules, kind); }
std::string_view name_of(Precision precision) { return find_name<Precision>(kPrecisions, precision); }
std::string_view name_of(Augment augment) { return find_name<Augment>(kAugments, augment); }
std::string_view name_of(ConvPolicy path) { return find_name<ConvPolicy>(kConvPolicies, path); }

OptimizerKind parse_optimizer(std::string_view text) {
  return find_value<OptimizerKind>("--optimizer", kOptimizers, text);
}
ScheduleKind parse_schedule(std::string_view text) { return find_value<ScheduleKind>("--schedule", kSchedules, text); }

Precision parse_precision(std::string_view text) { return find_value<Precision>("--precision", kPrecisions, text); }
Augment parse_augment(std::string_view text) { return find_value<Augment>("--augment", kAugments, text); }
ConvPolicy parse_conv(std::string_view text) { return find_value<ConvPolicy>("--conv", kConvPolicies, text); }

DType dtype_of(Precision precision) {
  if (precision == Precision::fp16) return DType::f16;
  return precision == Precision::bf16 ? DType::bf16 : DType::f32;
}

void check_precision(Precision precision, Device device) {
  if (device.is_cpu() && dtype_of(precision) != DType::f32) {
    throw UsageError(fmt::format("--precision {}: mixed precision needs a GPU, on the CPU Cuttle computes in fp32",
                                 name_of(precision)),
                     "leave --precision out, or take fp32");
  }
}

void apply_compute_settings(const TrainConfig& c) {
  const bool tf32 = c.precision == Precision::tf32;
  set_conv_settings({.policy = c.conv,
                     .measure_limit = static_cast<int>(c.measure_limit),
                     .cudnn = !c.no_cudnn,
                     .tf32 = c.tf32_conv.value_or(tf32),
                     .deterministic = c.deterministic,
                     .reduced_precision_accumulation = !c.no_reduced_precision,
                     .workspace_limit = c.workspace_limit});
  set_matmul_settings({.tf32 = c.tf32_matmul.value_or(tf32)});
}

std::vector<ConvRule> conv_rules(const TrainConfig& c) {
  std::vector<ConvRule> rules;
  for (const std::string& text : c.algo) {
    try {
      rules.push_back(parse_conv_rule(text));
    } catch (const UsageError& error) {
      throw UsageError("--algo " + error.cause(), error.hint());
    }
  }
  return rules;
}

std::string describe_convolutions(const TrainConfig& c) {
  const TrainConfig usual;
  std::vector<std::string> parts;
  const auto add = [&](bool differs, std::string text) {
    if (differs) parts.push_back(std::move(text));
  };
  add(c.conv != usual.conv, std::string(name_of(c.conv)));
  add(c.measure_limit != usual.measure_limit, fmt::format("{} candidates", c.measure_limit));
  for (const std::string& rule : c.algo) add(true, rule);
  add(c.no_cudnn, "without cuDNN");
  add(c.deterministic, "deterministic");
  add(c.no_reduced_precision, "no accumulation in 16 bits");
  add(c.tf32_conv && *c.tf32_conv != (c.precision == Precision::tf32),
      c.tf32_conv.value_or(false) ? "TF32" : "no TF32");
  if (c.workspace_limit) add(true, fmt::format("at most {} of workspace", format_bytes(*c.workspace_limit)));
  return parts.empty() ? std::string() : fmt::format("convolutions: {}", fmt::join(parts, ", "));
}

void validate(const TrainConfig& c) {
  if (c.epochs) require_within("--epochs", *c.epochs, 1, kMostEpochs);
  require_within("--steps", c.steps, 0, kMostSteps);
  require_within("--batch", c.batch, 1, kMostBatch);
  require_within("--accumulate", c.accumulate, 1, kMostBatch);
  require_within("--size", c.size, 0, kMostSize);
  require_within("--warmup", c.warmup, 0, kMostSteps);
  require_within("--threads", c.threads, 0, kMostThreads);
  require_within("--measure-limit", c.measure_limit, 1, kMostCandidates);
  require_within("--memory-limit", c.memory_limit.value_or(1), std::uint64_t{1}, kMostBytes);
  require_within("--workspace-limit", c.workspace_limit.value_or(0), std::uint64_t{0}, kMostBytes);
  conv_rules(c);
  if (c.lr) require(std::isfinite(*c.lr) && *c.lr > 0, "--lr", fmt::format("{}", *c.lr), "must be a number above 0");
  if (c.weight_decay) require_not_negative("--weight-decay", *c.weight_decay);
  require_not_negative("--clip-grad-norm", c.clip_grad_norm);
  require_fraction("--momentum", c.momentum);
  require_fraction("--label-smoothing", c.label_smoothing);
}

void resolve_for(TrainConfig& c, std::int64_t train_images) {
  if (c.batch > train_images) {
    throw UsageError(
        fmt::format("--batch {} is larger than the training set, which has {} images", c.batch, train_images),
        fmt::format("take a batch of at most {}", train_images));
  }
  const std::int64_t per_epoch = steps_per_epoch(c, train_images);
  if (!c.epochs) c.epochs = std::max(kDefaultEpochs, ceil_div(c.steps, per_epoch));
  require(*c.epochs <= kMostEpochs, "--steps", fmt::format("{}", c.steps),
          fmt::format("may make at most {} epochs, here of {} steps", kMostEpochs, per_epoch));
  if (const std::int64_t total = *c.epochs * per_epoch; c.warmup >= total) {
    throw UsageError(fmt::format("--warmup {} leaves no step to train: the run has {} steps", c.warmup, total),
                     "shorten the warm-up or train for more epochs");
  }
  const bool sgd = c.optimizer == OptimizerKind::sgd;
  if (!c.lr) c.lr = sgd ? 0.05 : 2e-3;
  if (!c.weight_decay) c.weight_decay = sgd ? 5e-4 : 1e-2;
  if (!c.tf32_conv) c.tf32_conv = c.precision == Precision::tf32;
  if (!c.tf32_matmul) c.tf32_matmul = c.precision == Precision::tf32;
}

nlohmann::ordered_json to_json(const TrainConfig& config) {
  nlohmann::ordered_json json;
  for_each_setting(config, [&](const char* key, const auto& value) { put(json, key, value); });
  return json;
}

TrainConfig config_from_json(const nlohmann::ordered_json& json) {
  if (!json.is_object()) throw CheckpointError("the saved settings are not a JSON object");
  TrainConfig config;
  try {
    for_each_setting(config, [&](const char* key, auto& value) {
      if (json.contains(key)) take(json, key, value);
    });
    validate(config);
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(fmt::format("the saved settings cannot be read: {}", reason_of(error)));
  } catch (const UsageError& error) {
    throw CheckpointError(fmt::format("the saved settings cannot be used: {}", error.cause()));
  }
  return config;
}

TrainConfig resumed_config(const TrainConfig& started, const TrainConfig& wanted,
                           const std::vector<std::string>& given) {
  static const std::set<std::string_view> may_change{"epochs",        "device",          "threads", "data",
                                                     "memory-limit",  "workspace-limit", "conv",    "algo",
                                                     "measure-limit", "no-cudnn"};
  nlohmann::ordered_json settings = to_json(started);
  const nlohmann::ordered_json asked = to_json(wanted);
  std::vector<std::string> differences;
  for (const std::string& key : given) {
    if (!asked.contains(key) || key == "steps") continue;
    const nlohmann::ordered_json before = settings.value(key, nlohmann::ordered_json());
    if (may_change.contains(key)) {
      settings[key] = asked.at(key);
    } else if (before != asked.at(key)) {
      differences.push_back(fmt::format("--{} was {} and is now {}", key, to_text(before), to_text(asked.at(key))));
    }
  }
  settings["steps"] = wanted.steps;  // a place to stop, which a run that goes on has passed
  if (differences.empty()) return config_from_json(settings);
  const std::string cause = fmt::format("the run cannot go on with other settings: {}", fmt::join(differences, ", "));
  const std::string hint = "leave these flags out, or start a new run with --weights from this one";
  if (wanted.model != started.model && std::ranges::find(given, "model") != given.end())
    throw CheckpointError(cause, hint);
  throw UsageError(cause, hint);
}

std::int64_t steps_per_epoch(const TrainConfig& c, std::int64_t train_images) {
  return ceil_div(data::batch_count(train_images, c.batch), c.accumulate);
}

std::unique_ptr<optim::Optimizer> make_optimizer(const TrainConfig& c, const nn::Module& module) {
  const double lr = c.lr.value(), decay = c.weight_decay.value();
  if (c.optimizer == OptimizerKind::adamw) {
    return std::make_unique<optim::AdamW>(module.parameters(), optim::AdamWOptions{.lr = lr, .weight_decay = decay});
  }
  return std::make_unique<optim::SGD>(module.parameters(),
                                      optim::SGDOptions{.lr = lr, .momentum = c.momentum, .weight_decay = decay});
}

optim::Schedule make_schedule(const TrainConfig& c, std::int64_t train_images) {
  const double lr = c.lr.value();
  // --steps is a place to stop, not the length of the schedule: a run cut short and resumed follows the same curve.
  const std::int64_t steps = c.epochs.value() * steps_per_epoch(c, train_images) - c.warmup;
  const auto schedule = [&] {
    switch (c.schedule) {
      case ScheduleKind::constant: return optim::Schedule::constant(lr);
      case ScheduleKind::step: return optim::Schedule::step(lr, std::max<std::int64_t>(1, ceil_div(steps, 3)));
      case ScheduleKind::cosine: return optim::Schedule::cosine(lr, steps);
      case ScheduleKind::one_cycle: return optim::Schedule::one_cycle(lr, steps);
    }
    throw Error("unknown schedule");
  }();
  return c.warmup > 0 ? schedule.with_warmup(c.warmup) : schedule;
}

}  // namespace cuttle::train
