#include <fmt/format.h>

#include <array>
#include <cmath>

#include "cuttle/data.hpp"
#include "cuttle/error.hpp"
#include "cuttle/random.hpp"
#include "data/statistics.hpp"

namespace cuttle::data {

std::span<const std::uint8_t> ImageSet::image(std::int64_t i) const {
  if (i < 0 || i >= size())
    throw UsageError(fmt::format("there is no image {} in '{}', which has {}", i, name, size()));
  const auto bytes = static_cast<std::size_t>(image_bytes());
  return std::span(pixels).subspan(static_cast<std::size_t>(i) * bytes, bytes);
}

PixelSums sum_pixels(std::span<const std::uint8_t> pixels, std::int64_t channels) {
  const auto c = static_cast<std::size_t>(channels);
  PixelSums sums{pixels.size() / c, std::vector<std::uint64_t>(c), std::vector<std::uint64_t>(c)};
  for (std::size_t channel = 0; channel < c; ++channel) {
    std::uint64_t sum = 0, square = 0;
    for (std::size_t i = channel; i < pixels.size(); i += c) {
      const std::uint32_t value = pixels[i];
      sum += value;
      square += value * value;
    }
    sums.sum[channel] = sum;
    sums.square[channel] = square;
  }
  return sums;
}

void set_statistics(ImageSet& set, const PixelSums& sums) {
  set.mean.clear();
  set.stddev.clear();
  const auto n = static_cast<double>(sums.count);
  for (std::size_t c = 0; c < sums.sum.size(); ++c) {
    const double mean = static_cast<double>(sums.sum[c]) / n;
    const double variance = static_cast<double>(sums.square[c]) / n - mean * mean;
    set.mean.push_back(static_cast<float>(mean / 255));
    set.stddev.push_back(variance > 0 ? static_cast<float>(std::sqrt(variance) / 255) : 1.0f);
  }
}

ImageSet synthetic(std::int64_t count, std::int64_t channels, std::int64_t height, std::int64_t width,
                   std::int64_t classes, std::uint64_t seed) {
  if (count < 1 || channels < 1 || height < 1 || width < 1 || classes < 1) {
    throw UsageError(fmt::format("synthetic images need sizes of at least 1, got {} images of {}x{}x{} in {} classes",
                                 count, channels, height, width, classes));
  }
  const std::int64_t pixels = Shape{count, channels, height, width}.numel();
  ImageSet set;
  set.name = "synthetic";
  set.channels = channels;
  set.height = height;
  set.width = width;
  set.pixels.resize(static_cast<std::size_t>(pixels));
  set.labels.resize(static_cast<std::size_t>(count));

  Generator generator(seed, kStreamSynthetic);
  // Sixteen pixels from the sixteen bytes of each Philox group.
  std::uint64_t offset = generator.reserve((pixels + 3) / 4).offset;
  for (std::size_t i = 0; i < set.pixels.size(); i += 16, ++offset) {
    const std::array<std::uint32_t, 4> words = philox4x32(seed, kStreamSynthetic, offset);
    for (std::size_t b = 0; b < 16 && i + b < set.pixels.size(); ++b) {
      set.pixels[i + b] = static_cast<std::uint8_t>(words[b / 4] >> (8 * (b % 4)));
    }
  }
  offset = generator.reserve(count * 4).offset;
  for (std::int64_t& label : set.labels) {
    const std::uint64_t word = philox4x32(seed, kStreamSynthetic, offset++)[0];
    label = static_cast<std::int64_t>((word * static_cast<std::uint64_t>(classes)) >> 32);
  }
  for (std::int64_t i = 0; i < classes; ++i) set.classes.push_back(fmt::format("{}", i));
  set_statistics(set, sum_pixels(set.pixels, channels));
  return set;
}

}  // namespace cuttle::data
