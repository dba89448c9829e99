// What the loader delivers: images of CIFAR's shape, shuffled, in batches of 512 on each device that is there, with
// more and more augmentation and workers. Prints a table, or JSON lines with --json.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
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

struct Setting {
  const char* name;
  bool crop_flip;
  data::ImageTransform transform;
};

/// The best of several epochs, since other processes can only slow them down.
double images_per_s(const data::ImageSet& set, const data::LoaderOptions& options) {
  const data::Loader loader(set, options);
  double best = 0;
  data::Batch batch = loader.load(0, 0);
  for (std::int64_t epoch = 1; epoch <= 5; ++epoch) {
    const auto start = std::chrono::steady_clock::now();
    for (std::int64_t b = 0; b < loader.batches(); ++b) loader.load(epoch, b, batch);
    synchronize(options.device);
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(loader.batches() * options.batch) / elapsed.count());
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  const bool json = argc > 1 && std::string_view(argv[1]) == "--json";
  const data::ImageSet set = data::synthetic(50'000, 3, 32, 32, 10);
  const Setting settings[] = {
      {"as they are", false, {}}, {"crop_flip", true, {}}, {"crop_flip, transform", true, brighten}};
  std::vector<Device> places{kCpu};
  if (const Device best = best_device(); best.is_cuda()) places.push_back(best);
  if (!json) fmt::print("{:<8} {:<24} {:>8} {:>12}\n", "device", "augmentation", "workers", "images/s");
  for (const Device device : places) {
    for (const Setting& setting : settings) {
      for (const int workers : {0, 1, 2, 4, 8}) {
        const double rate = images_per_s(set, {.batch = 512,
                                               .shuffle = true,
                                               .drop_last = true,
                                               .device = device,
                                               .crop_flip = setting.crop_flip,
                                               .transform = setting.transform,
                                               .num_workers = workers});
        if (json) {
          fmt::print(
              "{{\"bench\":\"loader\",\"device\":\"{}\",\"augmentation\":\"{}\",\"workers\":{},\"img_s\":{:.0f}}}\n",
              device.str(), setting.name, workers, rate);
        } else {
          fmt::print("{:<8} {:<24} {:>8} {:>12.0f}\n", device.str(), setting.name, workers, rate);
        }
      }
    }
  }
}
