#include "cli/options.hpp"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <utility>

#include "cli/output.hpp"
#include "core/text.hpp"
#include "cuttle/error.hpp"
#include "cuttle/memory.hpp"
#include "cuttle/models.hpp"

namespace cuttle::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSyntheticTrain = 2048, kSyntheticTest = 512;

bool holds_mnist(const fs::path& folder) {
  for (const char* name : {"train-images-idx3-ubyte.gz", "train-images-idx3-ubyte"}) {
    std::error_code error;
    if (fs::exists(folder / name, error)) return true;
  }
  return false;
}

data::ImageSet resized(data::ImageSet set, std::int64_t size) {
  const std::int64_t n = set.size();
  std::vector<std::uint8_t> pixels;
  pixels.reserve(static_cast<std::size_t>(n * size * size * set.channels));
  for (std::int64_t i = 0; i < n; ++i) {
    const auto image = set.image(i);
    const data::Picture picture{set.height, set.width, set.channels, {image.begin(), image.end()}};
    const data::Picture small = data::convert_picture(picture, set.channels, size, size);
    pixels.insert(pixels.end(), small.pixels.begin(), small.pixels.end());
  }
  set.pixels = std::move(pixels);
  set.height = set.width = size;
  return set;
}

data::ImageSet synthetic(data::Split split, const WantedImages& wanted) {
  const bool train = split == data::Split::train;
  return data::synthetic(train ? kSyntheticTrain : kSyntheticTest, wanted.channels, wanted.size, wanted.size,
                         wanted.classes, train ? 0 : 1);
}

}  // namespace

void add_device_flags(CLI::App& command, DeviceFlags& flags) {
  command
      .add_option("--device", flags.device, "auto, cpu, cuda or cuda:N; auto takes the GPU with the most free memory")
      ->capture_default_str();
  command
      .add_option("--precision", flags.precision,
                  "fp32; tf32, which the CPU computes in fp32; on a GPU also fp16 or bf16, with fp32 weights")
      ->capture_default_str();
  command.add_option("--memory-limit", flags.memory_limit, "most memory to reserve: 64MiB, 2GiB, 500MB or bytes");
  add_conv_flags(command, flags.conv);
  command.add_option("--threads", flags.threads, "CPU threads; 0 takes all cores")->capture_default_str();
  command.add_flag("--json", flags.json, "JSON lines on stdout, and nothing else there");
}

void add_graph_flag(CLI::App& command, bool& graph) {
  command.add_flag("!--no-graph", graph, "queue every step op by op, where a GPU could replay a recorded one");
}

void add_batch_flag(CLI::App& command, std::int64_t& batch, const std::string& description) {
  const auto refuse_auto = [](const std::string& text) {
    if (text == "auto")
      throw UsageError("--batch auto: this version does not look for the largest batch", "give a number of images");
    return std::string();
  };
  command.add_option("--batch", batch, description)->check(CLI::Validator(refuse_auto, ""))->capture_default_str();
}

void add_recompute_flag(CLI::App& command) {
  const auto refuse_others = [](const std::string& text) {
    if (text == "none") return;
    if (text == "blocks" || text == "auto") {
      throw UsageError(fmt::format("--recompute {}: this version keeps all activations and recomputes none", text),
                       "leave --recompute out, or take none; a smaller --batch with --accumulate saves memory too");
    }
    throw UsageError(fmt::format("--recompute '{}' is not known", text), "choose from none");
  };
  command.add_option_function<std::string>("--recompute", refuse_others,
                                           "none: all activations are kept for the backward pass");
}

void say_if_no_gpu(const std::string& device_flag) {
  if (device_flag == "auto" && devices(DeviceKind::cuda).empty()) {
    warn("no GPU is used: {}; computing on the CPU", why_no_cuda());
  }
}

Device parse_device(const std::string& text) {
  try {
    return Device::parse(text);
  } catch (const DeviceError& error) {
    throw UsageError(fmt::format("--device {}: {}", text, error.cause()), error.hint());
  }
}

UsageError unsuitable_size(const std::string& model, std::int64_t size, const ShapeError& error) {
  return UsageError(fmt::format("--size {} does not suit {}: {}", size, model, error.cause()), error.hint());
}

void apply_threads(int threads) {
  try {
    set_num_threads(threads);
  } catch (const UsageError& error) {
    throw UsageError(fmt::format("--threads {} is not possible", threads), error.hint());
  }
}

void put_into(train::TrainConfig& c, const DeviceFlags& flags) {
  c.precision = train::parse_precision(flags.precision);
  put_into(c, flags.conv);
  c.device = flags.device;
  c.threads = flags.threads;
  if (!flags.memory_limit.empty()) c.memory_limit = parse_bytes("--memory-limit", flags.memory_limit);
}

Device apply(const train::TrainConfig& config) {
  apply_threads(config.threads);
  train::validate(config);
  const Device device = parse_device(config.device);
  say_if_no_gpu(config.device);
  train::check_precision(config.precision, device);
  train::apply_compute_settings(config);
  if (config.memory_limit) memory::allocator(device).set_limit(config.memory_limit);
  return device;
}

std::uint64_t parse_bytes(const std::string& flag, const std::string& text, std::uint64_t least) {
  static constexpr std::array<std::pair<std::string_view, double>, 8> units{
      {{"", 1}, {"B", 1}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}}};
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  for (const auto& [name, factor] : units) {
    const double bytes = value * factor;
    if (error != std::errc() || unit != name) continue;
    const bool possible = bytes >= static_cast<double>(least) && bytes <= static_cast<double>(train::kMostBytes);
    if (possible) return static_cast<std::uint64_t>(bytes);
    throw UsageError(
        fmt::format("{} {} is not possible", flag, text),
        fmt::format("{} must be within {} and {}", flag, format_bytes(least), format_bytes(train::kMostBytes)));
  }
  throw UsageError(fmt::format("{} '{}' is not a size", flag, text), "write 64MiB, 2GiB, 500MB or a number of bytes");
}

std::string shipped_mnist() {
  const fs::path here = fs::path("data") / "mnist";
  if (holds_mnist(here)) return here.string();
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  // The program lies in build/release of the tree.
  const fs::path in_tree = program.parent_path().parent_path().parent_path() / here;
  return !error && holds_mnist(in_tree) ? in_tree.string() : std::string();
}

std::string data_or_default(const std::string& given) {
  if (!given.empty()) return given;
  std::string shipped = shipped_mnist();
  if (shipped.empty())
    throw UsageError("no --data is given, and data/mnist is not here", "pass --data with the folder of a data set");
  return shipped;
}

WantedImages wanted_by_model(const std::string& model, std::int64_t size) {
  const models::ModelInfo& info = models::find(model);
  return {info.channels, size > 0 ? size : info.size, info.classes};
}

data::ImageSet open_images(const std::string& path, data::Split split, const WantedImages& wanted) {
  if (path == "synthetic") return synthetic(split, wanted);
  data::ImageSet set = data::open(path, split);
  if (wanted.channels > 0 && set.channels != wanted.channels) {
    throw DataError(
        fmt::format("the images of {} have {} channels, but the model takes {}", path, set.channels, wanted.channels),
        "use the data that the model was trained for");
  }
  const auto classes = static_cast<std::int64_t>(set.classes.size());
  if (wanted.classes > 0 && classes != wanted.classes) {
    throw DataError(fmt::format("{} has {} classes, but the model knows {}", path, classes, wanted.classes),
                    "use the data that the model was trained for");
  }
  const bool fits = wanted.size == 0 || (set.height == wanted.size && set.width == wanted.size);
  return fits ? set : resized(std::move(set), wanted.size);
}

TrainedModel load_trained(const train::ModelFile& file, const std::string& model, const data::ImageSet* set,
                          const train::TrainConfig& config, Device device) {
  TrainedModel result;
  if (file.spec) {
    if (!model.empty() && model != file.spec->architecture) {
      throw CheckpointError(fmt::format("{} holds weights of {}, not of {}", file.file, file.spec->architecture, model),
                            "leave --model out: the file says what it is");
    }
    result.spec = *file.spec;
  } else if (model.empty() || !set) {
    throw UsageError(fmt::format("{} does not say which model its weights belong to", file.file),
                     "pass --model NAME, and with --data the set that it was trained on");
  } else {
    result.spec = train::spec_for(model, *set);
  }
  result.module = train::make_module(result.spec);
  train::apply_weights(file, *result.module);
  nn::apply_conv_rules(*result.module, train::conv_rules(config));
  result.module->to(device);
  result.module->eval();
  return result;
}

}  // namespace cuttle::cli
