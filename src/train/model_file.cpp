#include "train/model_file.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "cuttle/error.hpp"
#include "cuttle/models.hpp"
#include "cuttle/serialization.hpp"
#include "cuttle/version.hpp"
#include "train/config.hpp"

namespace cuttle::train {
namespace {

constexpr const char* kSpecKey = "cuttle.model";

}  // namespace

ModelSpec spec_for(const std::string& architecture, const data::ImageSet& set) {
  if (set.height != set.width) {
    throw DataError(
        fmt::format("the images of '{}' are {}x{}, but models take square ones", set.name, set.height, set.width),
        "give --size N to resize them to NxN");
  }
  return {architecture, set.channels, set.height, set.classes, set.mean, set.stddev};
}

std::unique_ptr<nn::Module> make_module(const ModelSpec& spec) {
  return models::find(spec.architecture).make(spec.channels, spec.size, static_cast<std::int64_t>(spec.classes.size()));
}

nlohmann::ordered_json to_json(const ModelSpec& spec) {
  return {{"architecture", spec.architecture}, {"channels", spec.channels}, {"size", spec.size},
          {"classes", spec.classes},           {"mean", spec.mean},         {"stddev", spec.stddev}};
}

ModelSpec spec_from_json(const nlohmann::ordered_json& json) {
  ModelSpec spec;
  try {
    json.at("architecture").get_to(spec.architecture);
    json.at("channels").get_to(spec.channels);
    json.at("size").get_to(spec.size);
    json.at("classes").get_to(spec.classes);
    json.at("mean").get_to(spec.mean);
    json.at("stddev").get_to(spec.stddev);
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(fmt::format("the description of the model cannot be read: {}", error.what()));
  }
  const auto channels = static_cast<std::size_t>(spec.channels);
  if (spec.channels < 1 || spec.size < 1 || spec.size > kMostSize || spec.classes.empty() ||
      spec.mean.size() != channels || spec.stddev.size() != channels) {
    throw CheckpointError(
        fmt::format("the description of the model makes no sense: {} channels, size {}, {} classes, "
                    "{} means and {} deviations",
                    spec.channels, spec.size, spec.classes.size(), spec.mean.size(), spec.stddev.size()));
  }
  return spec;
}

void save_model(const std::string& file, const nn::Module& module, const ModelSpec& spec) {
  // "format": other readers of safetensors ask for it.
  save_safetensors(file, module.state(),
                   {{"format", "pt"}, {"cuttle.version", std::string(kVersion)}, {kSpecKey, to_json(spec).dump()}});
}

ModelFile load_model(const std::string& file) {
  const bool is_run = std::filesystem::is_directory(file);
  ModelFile result;
  result.file = is_run ? (std::filesystem::path(file) / "model.safetensors").string() : file;
  SafetensorsFile content = load_safetensors(result.file);
  result.tensors = std::move(content.tensors);
  if (const auto spec = content.metadata.find(kSpecKey); spec != content.metadata.end()) {
    try {
      result.spec = spec_from_json(nlohmann::ordered_json::parse(spec->second));
    } catch (const nlohmann::json::exception& error) {
      throw CheckpointError(fmt::format("{}: the description of the model is not JSON: {}", result.file, error.what()));
    } catch (const CheckpointError& error) {
      throw CheckpointError(fmt::format("{}: {}", result.file, error.cause()), error.hint());
    }
  }
  return result;
}

void apply_weights(const ModelFile& file, nn::Module& module) {
  try {
    nn::load_state(module, file.tensors);
  } catch (const CheckpointError& error) {
    throw CheckpointError(fmt::format("{}: {}", file.file, error.cause()), error.hint());
  }
}

}  // namespace cuttle::train
