// What the loader delivers: images of CIFAR's shape, shuffled, in batches of 512 on each device that is there, with
// more and more augmentation and workers; and on a GPU what a batch adds to a step that takes longer than to gather it:
// with workers its bytes go to the device beside the step before. Prints tables, or JSON lines with --json.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string_view>
#include <vector>

#include "cuttle/data.hpp"

namespace {

using namespace cuttle;

/// A random change of brightness: an augmentation of the usual cost, which touches every pixel.
void brighten(std::span<std::uint8_t> image, const data::ImageSet&, PhiloxKey key) {
  const int shift = static_cast<int>(philox4x32(key.seed, key.stream, key.offset)[0] % 81) - 40;
  for (std::uint8_t& pixel : image) pixel = static_cast<std::uint8_t>(std::clamp(pixel + shift, 0, 255));
}

/// Seconds a batch and `work` take: the best of several epochs, since other processes can only slow them down.
double seconds_a_step(const data::ImageSet& set, data::LoaderOptions options, const std::function<void()>& work) {
  options.shuffle = options.drop_last = true;
  const data::Loader loader(set, options);
  double best = 1e30;
  const data::Batch batch = loader.load(0, 0);
  for (std::int64_t epoch = 0; epoch < 6; ++epoch) {
    const auto start = std::chrono::steady_clock::now();
    for (std::int64_t b = 0; b < loader.batches(); ++b) {
      loader.load(epoch, b, batch);
      work();
    }
    synchronize(options.device);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    if (epoch > 0) best = std::min(best, elapsed.count() / static_cast<double>(loader.batches()));
  }
  return best;
}

void bench_rates(bool json, Device device) {
  struct Setting {
    const char* augmentation;
    bool crop_flip;
    data::ImageTransform transform;
  };
  const Setting settings[] = {
      {"none", false, {}}, {"crop_flip", true, {}}, {"crop_flip and transform", true, brighten}};
  const data::ImageSet set = data::synthetic(50'000, 3, 32, 32, 10);
  for (const Setting& setting : settings) {
    for (const int workers : {0, 1, 2, 4, 8}) {
      const data::LoaderOptions options{.batch = 512,
                                        .device = device,
                                        .crop_flip = setting.crop_flip,
                                        .transform = setting.transform,
                                        .num_workers = workers};
      const double rate = 512 / seconds_a_step(set, options, [] {});
      if (json) {
        fmt::print(
            "{{\"bench\":\"loader\",\"device\":\"{}\",\"augmentation\":\"{}\",\"workers\":{},\"img_s\":{:.0f}}}\n",
            device.str(), setting.augmentation, workers, rate);
      } else {
        fmt::print("{:<8} {:<24} {:>8} {:>12.0f}\n", device.str(), setting.augmentation, workers, rate);
      }
    }
  }
}

/// `fills` of 256 MiB are the step.
void bench_beside(bool json, Device device, std::int64_t side, std::int64_t batch, std::int64_t count, int fills) {
  const data::ImageSet set = data::synthetic(count, 3, side, side, 10);
  Tensor memory = Tensor::empty({64, 1 << 20}, {.device = device});
  const auto work = [&] {
    for (int i = 0; i < fills; ++i) memory.fill_(i);
  };
  double alone = 1e30;
  for (int i = 0; i < 20; ++i) {
    synchronize(device);
    const auto start = std::chrono::steady_clock::now();
    for (int step = 0; step < 10; ++step) work();
    synchronize(device);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    alone = std::min(alone, elapsed.count() / 10);
  }
  for (const int workers : {0, 4}) {
    const double step = seconds_a_step(
        set, {.batch = batch, .device = device, .dtype = DType::f16, .crop_flip = true, .num_workers = workers}, work);
    const std::int64_t bytes = batch * set.image_bytes();
    if (json) {
      fmt::print(
          "{{\"bench\":\"loader beside a step\",\"device\":\"{}\",\"batch_bytes\":{},\"workers\":{},"
          "\"step_ms\":{:.3f},\"added_ms\":{:.3f}}}\n",
          device.str(), bytes, workers, 1e3 * alone, 1e3 * (step - alone));
    } else {
      fmt::print("{:<8} {:<24} {:>8} {:>12.3f} {:>12.3f}\n", device.str(),
                 fmt::format("{} of 3x{}x{}, {:.1f} MB", batch, side, side, 1e-6 * static_cast<double>(bytes)), workers,
                 1e3 * alone, 1e3 * (step - alone));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool json = argc > 1 && std::string_view(argv[1]) == "--json";
  const Device best = best_device();
  if (!json) fmt::print("{:<8} {:<24} {:>8} {:>12}\n", "device", "augmentation", "workers", "images/s");
  bench_rates(json, kCpu);
  if (!best.is_cuda()) return 0;
  bench_rates(json, best);
  if (!json) fmt::print("\n{:<8} {:<24} {:>8} {:>12} {:>12}\n", "device", "batch", "workers", "step ms", "adds ms");
  bench_beside(json, best, 32, 512, 25'600, 40);
  bench_beside(json, best, 224, 256, 2'048, 400);
}
