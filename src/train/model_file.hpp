#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cuttle/data.hpp"
#include "cuttle/device.hpp"
#include "cuttle/nn.hpp"

namespace cuttle::train {

/// What is needed beside the weights to use a trained model on new pictures.
struct ModelSpec {
  std::string architecture;              ///< a name in the zoo
  std::int64_t channels = 1, size = 28;  ///< of the input
  std::vector<std::string> classes;
  std::vector<float> mean, stddev;  ///< of each channel, for values in [0,1]
  std::string file = {};            ///< that it was read from, if it was
};

/// A model of this architecture made for these images. Throws DataError unless they are square.
ModelSpec spec_for(const std::string& architecture, const data::ImageSet& set);
/// Freshly initialised, on the CPU. Throws UsageError if there is no such architecture and ShapeError if it cannot take
/// such images; CheckpointError if the spec comes from a file and no such model can be made.
std::unique_ptr<nn::Module> make_module(const ModelSpec& spec);

nlohmann::ordered_json to_json(const ModelSpec& spec);
/// From the JSON in `file`. Throws CheckpointError if a value is missing, of the wrong kind or senseless.
ModelSpec spec_from_json(const nlohmann::ordered_json& json, const std::string& file);

struct ModelFile {
  std::string file;
  std::vector<nn::NamedTensor> tensors;
  std::optional<ModelSpec> spec;  ///< missing where another program wrote the file
};

/// Writes the weights under PyTorch's names with the spec as metadata. Throws IoError.
void save_model(const std::string& file, const nn::Module& module, const ModelSpec& spec);
/// `file` may also be the folder of a run, whose model.safetensors is meant. Throws CheckpointError.
ModelFile load_model(const std::string& file);
/// Puts the file's weights into the module. Throws CheckpointError naming the file and the first tensors that do not
/// fit or hold NaN or infinities; nothing is changed then.
void apply_weights(const ModelFile& file, nn::Module& module);

}  // namespace cuttle::train
