#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/options.hpp"
#include "cli/output.hpp"
#include "core/text.hpp"
#include "cuttle/error.hpp"
#include "cuttle/memory.hpp"
#include "cuttle/random.hpp"
#include "io/json.hpp"
#include "memory/peak_watch.hpp"
#include "train/batch_of_one.hpp"
#include "train/config.hpp"
#include "train/stepper.hpp"

namespace cuttle::cli {
namespace {

constexpr std::int64_t kMostAhead = 16;  // steps queued before the first is waited for

using Clock = std::chrono::steady_clock;

/// How a step is timed. On a GPU steps are queued ahead, so that many lie between two points at which the host waits.
struct Plan {
  std::int64_t warm_up = 3, groups = 0, steps = 1;  ///< groups of so many steps
};

Plan plan_for(Device device, std::int64_t steps) {
  if (device.is_cpu()) return {.warm_up = 3, .groups = steps, .steps = 1};
  return {.warm_up = 10, .groups = 5, .steps = steps};
}

struct BenchFlags {
  train::TrainConfig config;
  std::int64_t steps = 20;
  bool at_peak = false;
  DeviceFlags device;
};

struct Timing {
  double first_s = 0, median_s = 0;
  double spread = 0;  ///< distance of the quartiles as a fraction of the median
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

template <class Work> Timing measure(const Work& step, const Plan& plan, Device device, Clock::time_point start) {
  Timing timing;
  step();
  synchronize(device);
  timing.first_s = seconds_since(start);
  for (std::int64_t i = 1; i < plan.warm_up; ++i) step();
  synchronize(device);
  std::vector<double> times;
  for (std::int64_t group = 0; group < plan.groups; ++group) {
    const auto begin = Clock::now();
    for (std::int64_t i = 0; i < plan.steps; ++i) step();
    synchronize(device);
    times.push_back(seconds_since(begin) / static_cast<double>(plan.steps));
  }
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
  const train::ModelSpec spec = train::spec_for(c.model, set);
  train::check_batch_of_one(c, spec);

  const auto start = Clock::now();
  manual_seed(c.seed);
  const std::unique_ptr<nn::Module> module = train::make_module(spec);
  module->to(device);
  nn::apply_conv_rules(*module, train::conv_rules(c));
  const std::unique_ptr<optim::Optimizer> optimizer = train::make_optimizer(c, *module);
  const data::Batch batch =
      data::Loader(set, {.batch = c.batch, .drop_last = true, .device = device, .dtype = train::dtype_of(c.precision)})
          .load(0, 0);
  const train::Window window{
      .batches = 1, .images = c.batch, .load = [&](std::int64_t, const data::Batch&) { return batch; }};
  train::Stepper stepper(*module, *optimizer,
                         {.scale_loss = c.precision == train::Precision::fp16, .capture = c.graph});
  const auto step = [&] {
    stepper.step(window, c.lr.value());
    while (stepper.next(stepper.pending() > kMostAhead)) continue;
  };
  std::optional<memory::PeakWatch> watch;
  if (flags.at_peak) watch.emplace(memory::allocator(device));
  const Timing timing = measure(step, plan_for(device, flags.steps), device, start);
  if (const std::string& why = stepper.why_not_captured(); !why.empty()) {
    warn("steps are not recorded as a CUDA graph: {}; going on without", why);
  }

  const memory::Stats stats = memory::allocator(device).stats();
  const std::string_view precision = name_of(c.precision);
  const std::string_view layout = name_of(batch.images.layout());
  const double images_per_s = static_cast<double>(c.batch) / timing.median_s;
  if (flags.device.json) {
    nlohmann::ordered_json json = {{"model", c.model},
                                   {"batch", c.batch},
                                   {"data", set.name},
                                   {"precision", precision},
                                   {"layout", layout},
                                   {"device", device.str()},
                                   {"conv", train::name_of(c.conv)},
                                   {"algo", c.algo},
                                   {"graph", stepper.captured()},
                                   {"threads", num_threads()},
                                   {"ms", 1e3 * timing.median_s},
                                   {"spread", timing.spread},
                                   {"img_s", images_per_s},
                                   {"peak_allocated_bytes", stats.peak_allocated_bytes},
                                   {"peak_reserved_bytes", stats.peak_reserved_bytes},
                                   {"peak_rss_bytes", peak_rss_bytes()},
                                   {"first_step_s", timing.first_s}};
    if (watch) {
      for (const auto& [bytes, count] : watch->at_peak())
        json["at_peak"].push_back({{"bytes", bytes}, {"count", count}});
    }
    say("{}\n", to_text(json));
    return;
  }
  say("{}, batch {} of {}, {}x{}x{}, {} {} on {} with {} threads\n", c.model, c.batch, set.name, set.channels,
      set.height, set.width, precision, layout, device.str(), num_threads());
  say("  {:.2f} ms a training step (median of {}, spread {:.1f}%), {:.0f} images/s\n", 1e3 * timing.median_s,
      flags.steps, 100 * timing.spread, images_per_s);
  say("  peak memory {} allocated, {} reserved, {} resident in all; first step {:.2f} s\n",
      format_bytes(stats.peak_allocated_bytes), format_bytes(stats.peak_reserved_bytes), format_bytes(peak_rss_bytes()),
      timing.first_s);
  if (!watch) return;
  for (const auto& [bytes, count] : watch->at_peak()) say("  {:>6} x {}\n", count, format_bytes(bytes));
}

void run(BenchFlags flags) {
  train::TrainConfig& c = flags.config;
  put_into(c, flags.device);
  if (flags.steps < 1)
    throw UsageError(fmt::format("--steps {} is not possible", flags.steps), "--steps must be at least 1");
  const Device device = apply(c);
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
  // Those of the other programs that this one is compared with.
  flags->config.lr = 0.01;
  flags->config.weight_decay = 1e-4;
  command->add_option("--model", flags->config.model, "architecture")->capture_default_str();
  command->add_option("--data", flags->config.data, "folder of a data set, whose first training images are taken")
      ->capture_default_str();
  add_batch_flag(*command, flags->config.batch, "images a step");
  command->add_option("--size", flags->config.size, "height and width of the images; default: the model's");
  command->add_option("--steps", flags->steps, "steps to time, after a warm-up; on a GPU five times as many")
      ->capture_default_str();
  command->add_option("--seed", flags->config.seed, "of the weights")->capture_default_str();
  command->add_flag("--at-peak", flags->at_peak, "list the blocks of memory in use at the peak");
  add_recompute_flag(*command);
  add_graph_flag(*command, flags->config.graph);
  add_device_flags(*command, flags->device);
  command->callback([flags] {
    run(*flags);
    deliver();
  });
}

}  // namespace cuttle::cli
