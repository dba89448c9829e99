#include "train/run_state.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "cuttle/error.hpp"
#include "cuttle/serialization.hpp"
#include "cuttle/version.hpp"
#include "io/json.hpp"
#include "train/divergence.hpp"

namespace cuttle::train {
namespace {

using Json = nlohmann::ordered_json;

// Far above any set, and small enough that no product of it and of the epochs overflows.
constexpr std::int64_t kMostImages = std::int64_t{1} << 40;
constexpr const char* kRestart = "start again from the weights of the run: pass its model.safetensors with --weights";
constexpr std::string_view kModelPrefix = "model.", kOptimizerPrefix = "optimizer.";

template <class T> void put(Json& json, const char* key, const std::optional<T>& value) {
  if (value) json[key] = *value;
}

template <class T> std::optional<T> take(const Json& json, const char* key) {
  if (!json.contains(key)) return std::nullopt;
  return json.at(key).get<T>();
}

Json to_json(const Progress& p) {
  Json json = {{"epoch", p.epoch},       {"step", p.step},       {"step_in_epoch", p.step_in_epoch},
               {"loss_sum", p.loss_sum}, {"correct", p.correct}, {"images", p.images}};
  put(json, "best_test_accuracy", p.best_test_accuracy);
  put(json, "test_accuracy", p.test_accuracy);
  put(json, "test_loss", p.test_loss);
  if (const auto& s = p.loss_scale) {
    json["loss_scale"] = {{"scale", s->scale}, {"good_steps", s->good_steps}, {"skipped_steps", s->skipped_steps}};
  }
  return json;
}

Progress progress_from_json(const Json& json) {
  Progress p;
  p.epoch = whole_number<std::int64_t>(json, "epoch");
  p.step = whole_number<std::int64_t>(json, "step");
  p.step_in_epoch = whole_number<std::int64_t>(json, "step_in_epoch");
  json.at("loss_sum").get_to(p.loss_sum);
  p.correct = whole_number<std::int64_t>(json, "correct");
  p.images = whole_number<std::int64_t>(json, "images");
  p.best_test_accuracy = take<double>(json, "best_test_accuracy");
  p.test_accuracy = take<double>(json, "test_accuracy");
  p.test_loss = take<double>(json, "test_loss");
  if (json.contains("loss_scale")) {
    const Json& scale = json.at("loss_scale");
    p.loss_scale = {scale.at("scale").get<float>(), whole_number<std::int64_t>(scale, "good_steps"),
                    whole_number<std::int64_t>(scale, "skipped_steps")};
  }
  return p;
}

Json to_json(const PhiloxKey& key) { return {{"seed", key.seed}, {"stream", key.stream}, {"offset", key.offset}}; }

PhiloxKey key_from_json(const Json& json) {
  return {whole_number<std::uint64_t>(json, "seed"), whole_number<std::uint64_t>(json, "stream"),
          whole_number<std::uint64_t>(json, "offset")};
}

/// Settings that do not belong to this model or set would train something else.
void check_settings(const RunState& s) {
  if (s.config.model != s.spec.architecture || (s.config.size != 0 && s.config.size != s.spec.size)) {
    throw CheckpointError(fmt::format("its settings are for {} of size {}, but it holds a {} of size {}",
                                      s.config.model, s.config.size, s.spec.architecture, s.spec.size));
  }
  if (s.train_images < 1 || s.train_images > kMostImages) {
    throw CheckpointError(fmt::format("its progress makes no sense: {} training images", s.train_images));
  }
  try {
    TrainConfig config = s.config;
    resolve_for(config, s.train_images);
  } catch (const UsageError& error) {
    throw CheckpointError(fmt::format("its settings cannot be used: {}", error.cause()));
  }
}

bool is_fraction(const std::optional<double>& value) { return !value || (*value >= 0 && *value <= 1); }

/// Progress that contradicts itself would be trained on without a word.
void check_progress(const RunState& s) {
  const Progress& p = s.progress;
  const std::int64_t per_epoch = steps_per_epoch(s.config, s.train_images);
  const bool follows = p.step_in_epoch >= 0 && p.step_in_epoch <= per_epoch && p.step >= p.step_in_epoch &&
                       (p.step - p.step_in_epoch) % per_epoch == 0 && (p.step - p.step_in_epoch) / per_epoch == p.epoch;
  if (!follows) {
    throw CheckpointError(fmt::format("its progress makes no sense: epoch {}, step {}, step {} of {} in the epoch",
                                      p.epoch, p.step, p.step_in_epoch, per_epoch));
  }
  const std::int64_t seen =
      p.step_in_epoch == per_epoch ? s.train_images : p.step_in_epoch * s.config.accumulate * s.config.batch;
  if (p.images != seen || p.correct < 0 || p.correct > p.images || !std::isfinite(p.loss_sum)) {
    throw CheckpointError(
        fmt::format("its progress makes no sense: {} of {} images correct after {}, with losses that sum to {}",
                    p.correct, p.images, seen, p.loss_sum));
  }
  if (!is_fraction(p.test_accuracy) || !is_fraction(p.best_test_accuracy) || !std::isfinite(p.test_loss.value_or(0))) {
    throw CheckpointError("its progress makes no sense: it has an impossible result on the test images");
  }
  if (const auto& s = p.loss_scale;
      s && !(std::isfinite(s->scale) && s->scale > 0 && s->good_steps >= 0 && s->skipped_steps >= 0)) {
    throw CheckpointError(fmt::format("its progress makes no sense: it scales losses by {}", s->scale));
  }
}

RunState from_file(const std::string& file, SafetensorsFile content) {
  RunState state;
  const auto part = [&](const char* key) { return Json::parse(content.metadata.at(key)); };
  state.config = config_from_json(part("config"));
  state.spec = spec_from_json(part("model"), file);
  const Json progress = part("progress"), generators = part("generators");
  state.progress = progress_from_json(progress);
  state.train_images = whole_number<std::int64_t>(progress, "train_images");
  state.ops_generator = key_from_json(generators.at("ops"));
  state.init_generator = key_from_json(generators.at("init"));
  for (nn::NamedTensor& t : content.tensors) {
    if (t.name.starts_with(kModelPrefix)) {
      state.model.push_back({t.name.substr(kModelPrefix.size()), t.tensor});
    } else if (t.name.starts_with(kOptimizerPrefix)) {
      state.optimizer.push_back({t.name.substr(kOptimizerPrefix.size()), t.tensor});
    } else {
      throw CheckpointError(fmt::format("it holds a tensor '{}', which belongs to no part of a run", t.name));
    }
  }
  check_settings(state);
  check_progress(state);
  if (const auto found = first_non_finite_weight(state.model)) throw CheckpointError("of its weights " + *found);
  return state;
}

std::string epochs_done(const Progress& done) {
  const std::string epochs = fmt::format("{} epoch{}", done.epoch, done.epoch == 1 ? "" : "s");
  if (done.step_in_epoch == 0) return epochs;
  return fmt::format("{} and {} step{}", epochs, done.step_in_epoch, done.step_in_epoch == 1 ? "" : "s");
}

}  // namespace

void check_goes_on(const TrainConfig& config, const Progress& done, std::int64_t train_images) {
  const std::int64_t epochs = config.epochs.value();
  if (epochs * steps_per_epoch(config, train_images) < done.step) {
    const std::int64_t least = done.epoch + (done.step_in_epoch > 0 ? 1 : 0);
    throw UsageError(fmt::format("--epochs {} is too few: the run has done {}", epochs, epochs_done(done)),
                     fmt::format("give --epochs at least {}; more than that trains on", least));
  }
  if (config.steps > 0 && config.steps < done.step) {
    throw UsageError(fmt::format("--steps {} is too few: the run has done {} steps", config.steps, done.step),
                     "--steps counts from the start of the run; give more than that, or leave it out");
  }
}

void save_run_state(const std::string& file, const RunState& state) {
  std::vector<nn::NamedTensor> tensors;
  for (const nn::NamedTensor& t : state.model) tensors.push_back({std::string(kModelPrefix) + t.name, t.tensor});
  for (const nn::NamedTensor& t : state.optimizer)
    tensors.push_back({std::string(kOptimizerPrefix) + t.name, t.tensor});
  Json progress = to_json(state.progress);
  progress["train_images"] = state.train_images;
  const Json generators = {{"ops", to_json(state.ops_generator)}, {"init", to_json(state.init_generator)}};
  save_safetensors(file, tensors,
                   {{"cuttle.version", std::string(kVersion)},
                    {"config", to_text(to_json(state.config))},
                    {"model", to_text(to_json(state.spec))},
                    {"progress", to_text(progress)},
                    {"generators", to_text(generators)}});
}

bool is_run_state(const SafetensorsFile& content) {
  return content.metadata.contains("progress") && content.metadata.contains("generators");
}

RunState load_run_state(const std::string& file) {
  SafetensorsFile content = load_safetensors(file);
  try {
    return from_file(file, std::move(content));
  } catch (const CheckpointError& error) {
    throw CheckpointError(fmt::format("{} is not the state of a run: {}", file, error.cause()),
                          error.hint().empty() ? kRestart : error.hint());
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(fmt::format("{} is not the state of a run: {}", file, reason_of(error)), kRestart);
  } catch (const std::out_of_range&) {
    throw CheckpointError(fmt::format("{} is not the state of a run: its header lacks a part of it", file),
                          "to start from these weights, pass the file with --weights");
  }
}

}  // namespace cuttle::train
