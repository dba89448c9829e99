#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>

#include "cli/conv_flags.hpp"
#include "cuttle/data.hpp"
#include "cuttle/device.hpp"
#include "cuttle/error.hpp"
#include "train/config.hpp"
#include "train/model_file.hpp"

namespace cuttle::cli {

/// Flags that several commands share.
struct DeviceFlags {
  std::string device = "auto", precision = "fp32", memory_limit;
  ConvFlags conv;
  int threads = 0;
  bool json = false;
};
void add_device_flags(CLI::App& command, DeviceFlags& flags);
/// --batch with its default. Throws UsageError on "auto".
void add_batch_flag(CLI::App& command, std::int64_t& batch, const std::string& description);
/// --recompute, which takes what this version can do: none.
void add_recompute_flag(CLI::App& command);
/// --no-graph.
void add_graph_flag(CLI::App& command, bool& graph);
/// What the flags say, in the configuration. Throws UsageError on an impossible value.
void put_into(train::TrainConfig& config, const DeviceFlags& flags);
/// Parses the device, sets how convolutions and matrix products are computed, threads and memory limit, and says on
/// stderr when "auto" had to take the CPU. Throws UsageError on an impossible value.
Device apply(const train::TrainConfig& config);
/// Throws UsageError naming --threads.
void apply_threads(int threads);
/// Throws UsageError naming --device, also where there is no such device.
Device parse_device(const std::string& text);
/// What to throw where a model turned out not to take images of this size.
UsageError unsuitable_size(const std::string& model, std::int64_t size, const ShapeError& error);
void say_if_no_gpu(const std::string& device_flag);

/// "64MiB", "2GiB", "500MB" or plain bytes. Throws UsageError, also for less than `least` and more than kMostBytes.
std::uint64_t parse_bytes(const std::string& flag, const std::string& text, std::uint64_t least = 1);

/// The shipped MNIST: data/mnist below the working directory or beside the sources of this program; empty if it is in
/// neither place.
std::string shipped_mnist();
/// `given`, or the shipped MNIST. Throws UsageError if there is neither.
std::string data_or_default(const std::string& given);

/// What a data set has to be like. 0 leaves it to the data.
struct WantedImages {
  std::int64_t channels = 0, size = 0, classes = 0;
};
/// The set at `path`, or random images of the wanted shape for "synthetic", resized to the wanted size. Throws
/// DataError if there is none or it cannot be used.
data::ImageSet open_images(const std::string& path, data::Split split, const WantedImages& wanted);
/// What `--data synthetic` imitates for this model.
WantedImages wanted_by_model(const std::string& model, std::int64_t size);

/// A trained model ready to use, with the settings of `config` for its layers. Where the file does not describe the
/// model, --model and a data set must: throws UsageError if they do not. Throws CheckpointError if the file does not
/// fit.
struct TrainedModel {
  train::ModelSpec spec;
  std::unique_ptr<nn::Module> module;
};
TrainedModel load_trained(const train::ModelFile& file, const std::string& model, const data::ImageSet* set,
                          const train::TrainConfig& config, Device device);

}  // namespace cuttle::cli
