#include "train/run_state.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "cuttle/error.hpp"
#include "cuttle/serialization.hpp"
#include "cuttle/version.hpp"

namespace cuttle::train {
namespace {

using Json = nlohmann::ordered_json;

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
  return json;
}

Progress progress_from_json(const Json& json) {
  Progress p;
  json.at("epoch").get_to(p.epoch);
  json.at("step").get_to(p.step);
  json.at("step_in_epoch").get_to(p.step_in_epoch);
  json.at("loss_sum").get_to(p.loss_sum);
  json.at("correct").get_to(p.correct);
  json.at("images").get_to(p.images);
  p.best_test_accuracy = take<double>(json, "best_test_accuracy");
  p.test_accuracy = take<double>(json, "test_accuracy");
  p.test_loss = take<double>(json, "test_loss");
  return p;
}

Json to_json(const PhiloxKey& key) { return {{"seed", key.seed}, {"stream", key.stream}, {"offset", key.offset}}; }

PhiloxKey key_from_json(const Json& json) {
  return {json.at("seed").get<std::uint64_t>(), json.at("stream").get<std::uint64_t>(),
          json.at("offset").get<std::uint64_t>()};
}

/// Progress that contradicts itself would be trained on without a word.
void check_progress(const RunState& s) {
  const Progress& p = s.progress;
  const std::int64_t per_epoch = s.train_images > 0 ? steps_per_epoch(s.config, s.train_images) : 0;
  if (p.epoch < 0 || p.step_in_epoch < 0 || p.step_in_epoch > per_epoch ||
      p.step != p.epoch * per_epoch + p.step_in_epoch) {
    throw CheckpointError(fmt::format("its progress makes no sense: epoch {}, step {}, step {} of {} in the epoch",
                                      p.epoch, p.step, p.step_in_epoch, per_epoch));
  }
}

RunState from_file(SafetensorsFile content) {
  RunState state;
  const auto part = [&](const char* key) { return Json::parse(content.metadata.at(key)); };
  state.config = config_from_json(part("config"));
  state.spec = spec_from_json(part("model"));
  const Json progress = part("progress"), generators = part("generators");
  state.progress = progress_from_json(progress);
  progress.at("train_images").get_to(state.train_images);
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
  check_progress(state);
  return state;
}

}  // namespace

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
                    {"config", to_json(state.config).dump()},
                    {"model", to_json(state.spec).dump()},
                    {"progress", progress.dump()},
                    {"generators", generators.dump()}});
}

RunState load_run_state(const std::string& file) {
  SafetensorsFile content = load_safetensors(file);
  try {
    return from_file(std::move(content));
  } catch (const CheckpointError& error) {
    throw CheckpointError(fmt::format("{} is not the state of a run: {}", file, error.cause()), error.hint());
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(fmt::format("{} is not the state of a run: {}", file, error.what()));
  } catch (const std::out_of_range&) {
    throw CheckpointError(fmt::format("{} is not the state of a run: its header lacks a part of it", file),
                          "to start from these weights, pass the file with --weights");
  }
}

}  // namespace cuttle::train
