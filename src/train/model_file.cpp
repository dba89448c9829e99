#include "train/model_file.hpp"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cuttle/error.hpp"
#include "cuttle/models.hpp"
#include "cuttle/random.hpp"
#include "cuttle/serialization.hpp"
#include "cuttle/version.hpp"
#include "io/json.hpp"
#include "train/config.hpp"
#include "train/divergence.hpp"
#include "train/run_folder.hpp"
#include "train/run_state.hpp"

namespace cuttle::train {
namespace {

constexpr const char* kSpecKey = "cuttle.model";
constexpr const char* kCopyAgain = "copy the file again or take an older checkpoint";

/// Whether so much memory can be had now.
bool fits_memory(std::uint64_t bytes) {
  try {
    Tensor::empty({static_cast<std::int64_t>(bytes)}, {.dtype = DType::u8});
    return true;
  } catch (const OutOfMemoryError&) {
    return false;
  }
}

std::unique_ptr<nn::Module> make_any(const ModelSpec& spec) {
  return models::find(spec.architecture).make(spec.channels, spec.size, static_cast<std::int64_t>(spec.classes.size()));
}

void check_values(const ModelSpec& spec) {
  const auto channels = static_cast<std::size_t>(spec.channels);
  if (spec.channels < 1 || spec.size < 1 || spec.size > kMostSize || spec.classes.empty() ||
      spec.mean.size() != channels || spec.stddev.size() != channels) {
    throw CheckpointError(
        fmt::format("the description of the model makes no sense: {} channels, size {}, {} classes, "
                    "{} means and {} deviations",
                    spec.channels, spec.size, spec.classes.size(), spec.mean.size(), spec.stddev.size()));
  }
  for (std::size_t c = 0; c < channels; ++c) {
    if (std::isfinite(spec.mean[c]) && std::isfinite(spec.stddev[c]) && spec.stddev[c] > 0) continue;
    throw CheckpointError(
        fmt::format("the description of the model cannot be used: channel {} has mean {} and deviation {}", c,
                    spec.mean[c], spec.stddev[c]));
  }
  try {
    models::find(spec.architecture);
  } catch (const UsageError& error) {
    throw CheckpointError(fmt::format("the description of the model cannot be used: {}", error.cause()), error.hint());
  }
}

/// A run keeps its state in DIR/state/, and the model that --weights wants in DIR.
[[noreturn]] void refuse_state(const std::string& file) {
  const std::string model = model_file_of(std::filesystem::absolute(file).parent_path().parent_path().string());
  throw CheckpointError(fmt::format("{} is the state of a run, not a model", file),
                        std::filesystem::exists(model)
                            ? fmt::format("pass {}", model)
                            : "pass the model.safetensors of the run's folder, which is written after each epoch");
}

/// Images are brought to the size that a file claims before its model is made. Where that is more than the architecture
/// usually takes, the weights have to bear it out first, or a false claim would exhaust the memory.
void check_claimed_size(const ModelFile& file) {
  if (file.spec->size <= models::find(file.spec->architecture).size) return;
  const PhiloxKey before = init_generator().state();
  const std::unique_ptr<nn::Module> trial = make_module(*file.spec);
  init_generator().set_state(before);
  apply_weights(file, *trial);
}

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
  if (spec.file.empty()) return make_any(spec);
  const auto refusal = [&](const std::string& reason) {
    return CheckpointError(
        fmt::format("{} describes a {} of {} channels, size {} and {} classes, which cannot be made: {}", spec.file,
                    spec.architecture, spec.channels, spec.size, spec.classes.size(), reason),
        kCopyAgain);
  };
  try {
    return make_any(spec);
  } catch (const UsageError& error) {
    throw refusal(error.cause());
  } catch (const ShapeError& error) {
    throw refusal(error.cause());
  } catch (const OutOfMemoryError& error) {
    // Where all that the file holds would fit, it is the description that asks for too much.
    std::error_code gone;
    const std::uint64_t held = std::filesystem::file_size(spec.file, gone);
    if (gone || !fits_memory(held)) throw;
    throw refusal(error.cause());
  }
}

nlohmann::ordered_json to_json(const ModelSpec& spec) {
  return {{"architecture", spec.architecture}, {"channels", spec.channels}, {"size", spec.size},
          {"classes", spec.classes},           {"mean", spec.mean},         {"stddev", spec.stddev}};
}

ModelSpec spec_from_json(const nlohmann::ordered_json& json, const std::string& file) {
  ModelSpec spec;
  spec.file = file;
  try {
    json.at("architecture").get_to(spec.architecture);
    spec.channels = whole_number<std::int64_t>(json, "channels");
    spec.size = whole_number<std::int64_t>(json, "size");
    json.at("classes").get_to(spec.classes);
    json.at("mean").get_to(spec.mean);
    json.at("stddev").get_to(spec.stddev);
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError(fmt::format("the description of the model cannot be read: {}", reason_of(error)));
  }
  check_values(spec);
  return spec;
}

void save_model(const std::string& file, const nn::Module& module, const ModelSpec& spec) {
  // "format": other readers of safetensors ask for it.
  save_safetensors(file, module.state(),
                   {{"format", "pt"}, {"cuttle.version", std::string(kVersion)}, {kSpecKey, to_text(to_json(spec))}});
}

ModelFile load_model(const std::string& file) {
  const bool is_run = std::filesystem::is_directory(file);
  ModelFile result;
  result.file = is_run ? model_file_of(file) : file;
  SafetensorsFile content = load_safetensors(result.file);
  if (is_run_state(content)) refuse_state(result.file);
  result.tensors = std::move(content.tensors);
  if (const auto spec = content.metadata.find(kSpecKey); spec != content.metadata.end()) {
    try {
      result.spec = spec_from_json(nlohmann::ordered_json::parse(spec->second), result.file);
    } catch (const nlohmann::json::exception& error) {
      throw CheckpointError(
          fmt::format("{}: the description of the model cannot be read: {}", result.file, reason_of(error)),
          kCopyAgain);
    } catch (const CheckpointError& error) {
      throw CheckpointError(fmt::format("{}: {}", result.file, error.cause()),
                            error.hint().empty() ? kCopyAgain : error.hint());
    }
    check_claimed_size(result);
  }
  return result;
}

void apply_weights(const ModelFile& file, nn::Module& module) {
  if (const auto found = first_non_finite_weight(file.tensors)) {
    throw CheckpointError(fmt::format("{}: {}", file.file, *found),
                          "take weights from before the training went wrong, or copy the file again");
  }
  try {
    nn::load_state(module, file.tensors);
  } catch (const CheckpointError& error) {
    throw CheckpointError(fmt::format("{}: {}", file.file, error.cause()), error.hint());
  }
}

}  // namespace cuttle::train
