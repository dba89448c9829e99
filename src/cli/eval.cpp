#include <fmt/format.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.hpp"
#include "cli/options.hpp"
#include "cli/output.hpp"
#include "cuttle/error.hpp"
#include "cuttle/memory.hpp"
#include "io/json.hpp"
#include "train/config.hpp"
#include "train/evaluate.hpp"

namespace cuttle::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kWidestConfusion = 12;  // classes whose matrix fits a terminal

struct EvalFlags {
  std::string weights, model, data;
  std::int64_t batch = 256;
  DeviceFlags device;
};

struct ClassFigures {
  std::int64_t images = 0;
  double precision = 0, recall = 0, f1 = 0;
};

ClassFigures figures_of(const train::Evaluation& e, std::int64_t k) {
  ClassFigures f{.images = e.labelled(k)};
  const auto hits = static_cast<double>(e.count(k, k));
  const std::int64_t predicted = e.predicted_as(k);
  if (predicted > 0) f.precision = hits / static_cast<double>(predicted);
  if (f.images > 0) f.recall = hits / static_cast<double>(f.images);
  if (f.precision + f.recall > 0) f.f1 = 2 * f.precision * f.recall / (f.precision + f.recall);
  return f;
}

Json to_json(const train::Evaluation& e, const train::ModelSpec& spec, double seconds, const memory::Stats& stats) {
  Json json = {{"model", spec.architecture},
               {"images", e.images},
               {"test_accuracy", e.accuracy()},
               {"test_loss", e.loss},
               {"seconds", seconds},
               {"images_per_s", static_cast<double>(e.images) / seconds},
               {"peak_allocated_bytes", stats.peak_allocated_bytes},
               {"peak_reserved_bytes", stats.peak_reserved_bytes},
               {"classes", Json::array()},
               {"confusion", Json::array()}};
  for (std::int64_t k = 0; k < e.classes; ++k) {
    const ClassFigures f = figures_of(e, k);
    json["classes"].push_back({{"class", spec.classes[static_cast<std::size_t>(k)]},
                               {"images", f.images},
                               {"precision", f.precision},
                               {"recall", f.recall},
                               {"f1", f.f1}});
    Json row = Json::array();
    for (std::int64_t predicted = 0; predicted < e.classes; ++predicted) row.push_back(e.count(k, predicted));
    json["confusion"].push_back(row);
  }
  return json;
}

void print_classes(const train::Evaluation& e, const train::ModelSpec& spec) {
  say("\n{:<20} {:>8} {:>10} {:>8} {:>8}\n", "class", "images", "precision", "recall", "f1");
  for (std::int64_t k = 0; k < e.classes; ++k) {
    const ClassFigures f = figures_of(e, k);
    say("{:<20} {:>8} {:>9.2f}% {:>7.2f}% {:>7.2f}%\n", spec.classes[static_cast<std::size_t>(k)], f.images,
        100 * f.precision, 100 * f.recall, 100 * f.f1);
  }
}

void print_confusion(const train::Evaluation& e, const train::ModelSpec& spec) {
  say("\ntrue class \\ predicted\n{:<12}", "");
  for (const std::string& name : spec.classes) say(" {:>6.6}", name);
  say("\n");
  for (std::int64_t k = 0; k < e.classes; ++k) {
    say("{:<12.12}", spec.classes[static_cast<std::size_t>(k)]);
    for (std::int64_t predicted = 0; predicted < e.classes; ++predicted) {
      const std::int64_t n = e.count(k, predicted);
      say(" {:>6}", n == 0 ? std::string(".") : fmt::format("{}", n));
    }
    say("\n");
  }
}

void run(const EvalFlags& flags) {
  if (flags.batch < 1)
    throw UsageError(fmt::format("--batch {} is not possible", flags.batch), "--batch must be at least 1");
  train::TrainConfig config;
  put_into(config, flags.device);
  const Device device = apply(config);
  const train::ModelFile file = train::load_model(flags.weights);
  const WantedImages wanted = file.spec ? WantedImages{file.spec->channels, file.spec->size,
                                                       static_cast<std::int64_t>(file.spec->classes.size())}
                                        : WantedImages{};
  data::ImageSet set = open_images(data_or_default(flags.data), data::Split::test, wanted);
  const TrainedModel trained = load_trained(file, flags.model, &set, config, device);
  set.mean = trained.spec.mean;
  set.stddev = trained.spec.stddev;

  const auto start = std::chrono::steady_clock::now();
  const train::Evaluation e =
      train::evaluate(*trained.module, set, flags.batch, device, train::dtype_of(config.precision)).value();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (flags.device.json) {
    say("{}\n", to_text(to_json(e, trained.spec, seconds, memory::allocator(device).stats())));
    return;
  }
  say("{} on {}: accuracy {:.2f}% ({} of {}), loss {:.4f}, {:.1f} s\n", file.file, set.name, 100 * e.accuracy(),
      e.correct, e.images, e.loss, seconds);
  print_classes(e, trained.spec);
  if (e.classes <= kWidestConfusion) print_confusion(e, trained.spec);
}

}  // namespace

void add_eval(CLI::App& app) {
  CLI::App* command = app.add_subcommand("eval", "Measure a trained model on the test images of a data set");
  const auto flags = std::make_shared<EvalFlags>();
  command->add_option("--weights", flags->weights, "model.safetensors, or the folder of a run")->required();
  command->add_option("--data", flags->data, "folder of a data set; default: the shipped data/mnist");
  command->add_option("--model", flags->model, "architecture, where the file does not say it");
  add_batch_flag(*command, flags->batch, "images in memory at once");
  add_device_flags(*command, flags->device);
  command->callback([flags] {
    run(*flags);
    deliver();
  });
}

}  // namespace cuttle::cli
