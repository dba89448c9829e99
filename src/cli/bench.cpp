#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/options.hpp"
#include "core/text.hpp"
#include "cuttle/error.hpp"
#include "cuttle/memory.hpp"
#include "cuttle/random.hpp"
#include "io/json.hpp"
#include "train/config.hpp"
#include "train/step.hpp"

namespace cuttle::cli {
namespace {

constexpr int kWarmUpSteps = 3;

struct BenchFlags {
  train::TrainConfig config;
  std::int64_t steps = 20;
  DeviceFlags device;
};

struct Timing {
  double first_s = 0, median_s = 0;
  double spread = 0;  ///< distance of the quartiles as a fraction of the median
};

template <class Work> double seconds_of(const Work& work, Device device) {
  const auto start = std::chrono::steady_clock::now();
  work();
  synchronize(device);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

template <class Work> Timing measure(const Work& step, std::int64_t steps, Device device) {
  Timing timing;
  timing.first_s = seconds_of(step, device);
  for (int i = 1; i < kWarmUpSteps; ++i) seconds_of(step, device);
  std::vector<double> times;
  for (std::int64_t i = 0; i < steps; ++i) times.push_back(seconds_of(step, device));
  std::sort(times.begin(), times.end());
  const auto quantile = [&](double q) {
    return times[static_cast<std::size_t>(q * static_cast<double>(times.size() - 1))];
  };
  timing.median_s = quantile(0.5);
  timing.spread = (quantile(0.75) - quantile(0.25)) / timing.median_s;
  return timing;
}

/// As many images as a batch has, of this shape.
data::ImageSet images_for(const BenchFlags& flags, const WantedImages& images) {
  const train::TrainConfig& c = flags.config;
  if (c.data == "synthetic") {
    return data::synthetic(c.batch, images.channels, images.size, images.size, images.classes);
  }
  return open_images(c.data, data::Split::train, images);
}

/// The most memory that this process has held, all libraries included.
std::uint64_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

void run_on(BenchFlags& flags, Device device, const WantedImages& images) {
  train::TrainConfig& c = flags.config;
  const data::ImageSet set = images_for(flags, images);
  train::resolve_for(c, set.size());

  manual_seed(c.seed);
  const std::unique_ptr<nn::Module> module = train::make_module(train::spec_for(c.model, set));
  module->to(device);
  const std::unique_ptr<optim::Optimizer> optimizer = train::make_optimizer(c, *module);
  const data::Batch batch = data::Loader(set, {.batch = c.batch, .device = device}).load(0, 0);
  const train::Window window{.batches = 1, .images = c.batch, .load = [&](std::int64_t) { return batch; }};
  const auto step = [&] {
    train::accumulate_gradients(*module, *optimizer, window, {.measure_grad_norm = false});
    optimizer->step();
  };
  const Timing timing = measure(step, flags.steps, device);

  const memory::Stats stats = memory::allocator(device).stats();
  const std::string_view precision = name_of(train::parse_precision(flags.device.precision));
  const std::string_view layout = name_of(batch.images.layout());
  const double images_per_s = static_cast<double>(c.batch) / timing.median_s;
  if (flags.device.json) {
    const nlohmann::ordered_json json = {{"model", c.model},
                                         {"batch", c.batch},
                                         {"data", set.name},
                                         {"precision", precision},
                                         {"layout", layout},
                                         {"device", device.str()},
                                         {"threads", num_threads()},
                                         {"ms", 1e3 * timing.median_s},
                                         {"spread", timing.spread},
                                         {"img_s", images_per_s},
                                         {"peak_allocated_bytes", stats.peak_allocated_bytes},
                                         {"peak_reserved_bytes", stats.peak_reserved_bytes},
                                         {"peak_rss_bytes", peak_rss_bytes()},
                                         {"first_step_s", timing.first_s}};
    fmt::print("{}\n", to_text(json));
    return;
  }
  fmt::print("{}, batch {} of {}, {}x{}x{}, {} {} on {} with {} threads\n", c.model, c.batch, set.name, set.channels,
             set.height, set.width, precision, layout, device.str(), num_threads());
  fmt::print("  {:.2f} ms a training step (median of {}, spread {:.1f}%), {:.0f} images/s\n", 1e3 * timing.median_s,
             flags.steps, 100 * timing.spread, images_per_s);
  fmt::print("  peak memory {} allocated, {} reserved, {} resident in all; first step {:.2f} s\n",
             format_bytes(stats.peak_allocated_bytes), format_bytes(stats.peak_reserved_bytes),
             format_bytes(peak_rss_bytes()), timing.first_s);
}

void run(BenchFlags flags) {
  const train::TrainConfig& c = flags.config;
  train::validate(c);
  if (flags.steps < 1)
    throw UsageError(fmt::format("--steps {} is not possible", flags.steps), "--steps must be at least 1");
  const Device device = apply(flags.device);
  const WantedImages images = wanted_by_model(c.model, c.size);
  try {
    run_on(flags, device, images);
  } catch (const ShapeError& error) {
    throw unsuitable_size(c.model, images.size, error);
  }
}

}  // namespace

void add_bench(CLI::App& app) {
  CLI::App* command = app.add_subcommand("bench", "Time a training step on images that are already on the device");
  const auto flags = std::make_shared<BenchFlags>();
  flags->config.data = "synthetic";
  command->add_option("--model", flags->config.model, "architecture")->capture_default_str();
  command->add_option("--data", flags->config.data, "folder of a data set, whose first training images are taken")
      ->capture_default_str();
  add_batch_flag(*command, flags->config.batch, "images a step");
  command->add_option("--size", flags->config.size, "height and width of the images; default: the model's");
  command->add_option("--steps", flags->steps, "steps to time, after a warm-up")->capture_default_str();
  command->add_option("--seed", flags->config.seed, "of the weights")->capture_default_str();
  add_recompute_flag(*command);
  add_device_flags(*command, flags->device);
  command->callback([flags] { run(*flags); });
}

}  // namespace cuttle::cli
