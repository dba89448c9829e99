#include "data/gatherer.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

namespace cuttle::data {
namespace {

/// Images that a thread takes at a time: sharing them out costs far less than copying them, and a batch has more such
/// parts than there are threads.
constexpr std::size_t kImagesAPart = 8;

/// Randomness of one image in one epoch; 256 counters apart from every other.
PhiloxKey augment_key(std::uint64_t seed, std::int64_t epoch, std::int64_t index) {
  return {seed, kStreamAugment, static_cast<std::uint64_t>(epoch) << 40 | static_cast<std::uint64_t>(index) << 8};
}

constexpr std::int64_t kCropPadding = 4;

/// Top, left and flip of one image; of its 256 counters the last, which an ImageTransform is least likely to reach.
void draw_window(PhiloxKey key, std::int32_t* window) {
  const std::array<std::uint32_t, 4> words = philox4x32(key.seed, key.stream, key.offset + 255);
  const auto place = [](std::uint64_t word) {
    return static_cast<std::int32_t>((word * (2 * kCropPadding + 1)) >> 32) - static_cast<std::int32_t>(kCropPadding);
  };
  window[0] = place(words[0]);
  window[1] = place(words[1]);
  window[2] = static_cast<std::int32_t>(words[2] >> 31);
}

}  // namespace

Gatherer::Gatherer(const ImageSet& set, const LoaderOptions& options)
    : set_(set),
      transform_(options.transform),
      moves_(options.crop_flip),
      seed_(options.seed),
      workers_(options.num_workers.value()) {}

void Gatherer::start(std::int64_t epoch, std::vector<std::int64_t> indices) {
  workers_.give_up();
  batch_ = {};  // its memory may serve again
  batch_ = RawBatch(static_cast<std::int64_t>(indices.size()), set_, moves_);
  epoch_ = epoch;
  indices_ = std::move(indices);
  const std::size_t count = indices_.size();
  workers_.start(static_cast<std::int64_t>((count + kImagesAPart - 1) / kImagesAPart),
                 [this, count](std::int64_t part) {
                   const std::size_t begin = static_cast<std::size_t>(part) * kImagesAPart;
                   fill(begin, std::min(begin + kImagesAPart, count));
                 });
}

RawBatch Gatherer::finish() {
  workers_.wait();
  return std::exchange(batch_, {});
}

void Gatherer::fill(std::size_t begin, std::size_t end) {
  auto* pixels = static_cast<std::uint8_t*>(batch_.images.raw_mutable_data());
  auto* labels = static_cast<std::int64_t*>(batch_.labels.raw_mutable_data());
  auto* windows = moves_ ? static_cast<std::int32_t*>(batch_.windows.raw_mutable_data()) : nullptr;
  for (std::size_t i = begin; i < end; ++i) {
    const std::span<const std::uint8_t> image = set_.image(indices_[i]);
    const PhiloxKey key = augment_key(seed_, epoch_, indices_[i]);
    std::uint8_t* pixel = pixels + i * image.size();
    std::memcpy(pixel, image.data(), image.size());
    if (transform_) transform_(std::span(pixel, image.size()), set_, key);
    if (windows) draw_window(key, windows + 3 * i);
    labels[i] = set_.labels[static_cast<std::size_t>(indices_[i])];
  }
}

}  // namespace cuttle::data
