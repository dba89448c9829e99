#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/options.hpp"
#include "cli/output.hpp"
#include "cli/picture_art.hpp"
#include "cuttle/autograd.hpp"
#include "cuttle/error.hpp"
#include "cuttle/ops.hpp"
#include "io/json.hpp"

namespace cuttle::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kLargestDrawn = 64;  // pixels in width that fit any terminal

struct PredictFlags {
  std::string weights, model, data;
  std::vector<std::string> files;
  std::optional<std::int64_t> index;
  std::int64_t top = 3;
  bool show = false, invert = false;
  DeviceFlags device;
};

struct Candidate {
  std::string name;
  double probability;
};

/// A picture in the form the model takes, and what is known about it.
struct Subject {
  std::string file;
  data::Picture picture;
  std::optional<std::string> label;
};

std::vector<Candidate> predict(const TrainedModel& trained, const data::Picture& picture, std::int64_t top,
                               Device device) {
  const NoGrad no_grad;
  const Tensor images = data::to_tensor(picture, trained.spec.mean, trained.spec.stddev, device);
  const std::vector<float> probabilities = softmax((*trained.module)(images)).to_vector<float>();
  std::vector<std::size_t> order(probabilities.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return probabilities[a] > probabilities[b]; });
  order.resize(std::min(order.size(), static_cast<std::size_t>(top)));
  std::vector<Candidate> result;
  for (const std::size_t k : order) result.push_back({trained.spec.classes[k], probabilities[k]});
  return result;
}

void invert(data::Picture& picture) {
  for (std::uint8_t& p : picture.pixels) p = static_cast<std::uint8_t>(255 - p);
}

/// Digits in MNIST are light on dark; a scan is the other way round, and nothing in the result would tell.
void warn_if_inverted(const Subject& subject, const train::ModelSpec& spec) {
  if (spec.channels != 1 || spec.mean[0] > 0.35F) return;
  const auto& pixels = subject.picture.pixels;
  const double mean = std::accumulate(pixels.begin(), pixels.end(), 0.0) / (255.0 * static_cast<double>(pixels.size()));
  if (mean > 0.5) {
    warn("{} is mostly light, but the model was trained on light shapes on dark ground: try --invert", subject.file);
  }
}

Subject from_set(const data::ImageSet& set, std::int64_t index, const std::string& path) {
  if (index < 0 || index >= set.size()) {
    throw UsageError(fmt::format("--index {} is not in the set, which has {} test images", index, set.size()),
                     fmt::format("indices go from 0 to {}", set.size() - 1));
  }
  const auto image = set.image(index);
  const auto label = static_cast<std::size_t>(set.labels[static_cast<std::size_t>(index)]);
  return {fmt::format("{}#{}", path, index),
          {set.height, set.width, set.channels, {image.begin(), image.end()}},
          set.classes.at(label)};
}

Subject from_file(const std::string& file, const train::ModelSpec& spec, bool inverted) {
  Subject subject{file, data::convert_picture(data::read_picture(file), spec.channels, spec.size, spec.size), {}};
  if (inverted) {
    invert(subject.picture);
  } else {
    warn_if_inverted(subject, spec);
  }
  return subject;
}

void print(const Subject& subject, const std::vector<Candidate>& top, bool json, bool show) {
  if (json) {
    Json line = {{"file", subject.file}, {"top", Json::array()}};
    if (subject.label) line["label"] = *subject.label;
    for (const Candidate& c : top) line["top"].push_back({{"class", c.name}, {"probability", c.probability}});
    say("{}\n", to_text(line));
    return;
  }
  if (show) say("{}", draw(subject.picture, isatty(STDOUT_FILENO) != 0));
  say("{}{}\n", subject.file, subject.label ? fmt::format(" (labelled {})", *subject.label) : "");
  for (const Candidate& c : top) say("  {:<20} {:>7.3f}%\n", c.name, 100 * c.probability);
}

void run(const PredictFlags& flags) {
  if (flags.top < 1) throw UsageError(fmt::format("--top {} is not possible", flags.top), "--top must be at least 1");
  if (flags.files.empty() && !flags.index) {
    throw UsageError("there is nothing to predict", "name picture files, or a test image of the data with --index N");
  }
  train::TrainConfig config;
  put_into(config, flags.device);
  const Device device = apply(config);
  const train::ModelFile file = train::load_model(flags.weights);
  const WantedImages wanted = file.spec ? WantedImages{file.spec->channels, file.spec->size,
                                                       static_cast<std::int64_t>(file.spec->classes.size())}
                                        : WantedImages{};
  std::optional<data::ImageSet> set;
  if (flags.index || (!file.spec && !flags.data.empty()))
    set = open_images(data_or_default(flags.data), data::Split::test, wanted);
  const TrainedModel trained = load_trained(file, flags.model, set ? &*set : nullptr, config, device);

  const bool small = trained.spec.channels == 1 && trained.spec.size <= kLargestDrawn;
  const bool show = flags.show || (small && isatty(STDOUT_FILENO));
  const auto answer = [&](const Subject& subject) {
    print(subject, predict(trained, subject.picture, flags.top, device), flags.device.json, show);
    deliver();
  };
  if (flags.index) answer(from_set(*set, *flags.index, set->name));
  for (const std::string& picture : flags.files) answer(from_file(picture, trained.spec, flags.invert));
}

}  // namespace

void add_predict(CLI::App& app) {
  CLI::App* command = app.add_subcommand("predict", "Say what is on pictures, with a trained model");
  const auto flags = std::make_shared<PredictFlags>();
  command
      ->add_option("files", flags->files,
                   "PNG, JPEG, BMP or PGM pictures of any size; they are turned as their EXIF orientation asks and "
                   "converted to the size and colours that the model was trained on. Models trained on MNIST expect a "
                   "light digit on dark ground")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  command->add_option("--weights", flags->weights, "model.safetensors, or the folder of a run")->required();
  command->add_option("--data", flags->data, "data set that --index counts in; default: the shipped data/mnist");
  command->add_option("--index", flags->index, "predict this test image of the data set");
  command->add_option("--top", flags->top, "classes to print")->capture_default_str();
  command->add_flag("--show", flags->show,
                    "draw the picture as the model gets it; on a terminal small grey ones always are");
  command->add_flag("--invert", flags->invert, "for dark shapes on light ground, such as ink on paper");
  command->add_option("--model", flags->model, "architecture, where the file does not say it");
  add_device_flags(*command, flags->device);
  command->callback([flags] { run(*flags); });
}

}  // namespace cuttle::cli
