#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "cuttle/data.hpp"
#include "cuttle/error.hpp"
#include "cuttle/ops.hpp"
#include "data/worker.hpp"
#include "ops/elementwise.hpp"

namespace cuttle::data {

/// A batch in host memory, before it is normalised.
struct Loader::HostBatch {
  std::int64_t epoch = -1, b = -1;
  std::vector<std::int64_t> indices;
  Tensor images;   // u8[N,C,H,W] NHWC
  Tensor labels;   // i64[N]
  Tensor windows;  // i32[N,3] of normalize_images, if images are moved
};

/// The batch that the worker is gathering. Its tensors are allocated by the caller's thread, so that memory figures
/// do not depend on timing.
struct Loader::Prefetch {
  HostBatch batch;
  Worker worker;  // last: it must end before the batch goes
};

namespace {

/// Fisher-Yates over 0..n-1; the epoch counts in the upper half of the Philox offset, the position in the lower. The
/// product with a 32-bit word favours no place by more than n / 2^32.
std::vector<std::int64_t> shuffled(std::int64_t n, std::uint64_t seed, std::int64_t epoch) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  std::array<std::uint32_t, 4> words{};
  for (std::uint64_t left = order.size(), draw = 0; left > 1; --left, ++draw) {
    if (draw % 4 == 0) words = philox4x32(seed, kStreamShuffle, static_cast<std::uint64_t>(epoch) << 32 | draw / 4);
    const std::uint64_t chosen = (words[draw % 4] * left) >> 32;
    std::swap(order[left - 1], order[chosen]);
  }
  return order;
}

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

Loader::Loader(const ImageSet& set, LoaderOptions options) : set_(&set), options_(std::move(options)) {
  if (options_.batch < 1) {
    throw UsageError(fmt::format("a batch of {} images is impossible", options_.batch), "give at least 1");
  }
  if (options_.batch > set.size()) {
    throw UsageError(
        fmt::format("a batch of {} images is larger than the set '{}' of {}", options_.batch, set.name, set.size()),
        fmt::format("give at most {}", set.size()));
  }
  if (std::cmp_not_equal(set.pixels.size(), set.size() * set.image_bytes())) {
    throw UsageError(fmt::format("set '{}' has {} bytes of pixels, but {} images of {}", set.name, set.pixels.size(),
                                 set.size(), set.image_bytes()));
  }
  const Shape channels{set.channels};
  mean_ = Tensor::from(set.mean, channels).to(options_.device);
  stddev_ = Tensor::from(set.stddev, channels).to(options_.device);
  if (options_.prefetch && batches() > 1) prefetch_ = std::make_unique<Prefetch>();
}

Loader::~Loader() = default;
Loader::Loader(Loader&&) noexcept = default;
Loader& Loader::operator=(Loader&&) noexcept = default;

std::int64_t Loader::batches() const {
  return (set_->size() + (options_.drop_last ? 0 : options_.batch - 1)) / options_.batch;
}

const std::vector<std::int64_t>& Loader::order(std::int64_t epoch) const {
  if (epoch != order_epoch_) {
    order_ = shuffled(set_->size(), options_.seed, epoch);
    order_epoch_ = epoch;
  }
  return order_;
}

std::vector<std::int64_t> Loader::indices(std::int64_t epoch, std::int64_t b) const {
  if (epoch < 0 || b < 0 || b >= batches()) {
    throw UsageError(fmt::format("there is no batch {} in epoch {}: an epoch has {}", b, epoch, batches()));
  }
  const std::int64_t begin = b * options_.batch, end = std::min(begin + options_.batch, set_->size());
  std::vector<std::int64_t> result(static_cast<std::size_t>(end - begin));
  if (options_.shuffle) {
    std::copy_n(order(epoch).begin() + begin, end - begin, result.begin());
  } else {
    std::iota(result.begin(), result.end(), begin);
  }
  return result;
}

Loader::HostBatch Loader::allocate(std::int64_t epoch, std::int64_t b) const {
  HostBatch batch{epoch, b, indices(epoch, b), {}, {}, {}};
  const auto n = static_cast<std::int64_t>(batch.indices.size());
  batch.images = Tensor::empty({n, set_->channels, set_->height, set_->width}, {.dtype = DType::u8});
  batch.labels = Tensor::empty({n}, {.dtype = DType::i64});
  if (options_.crop_flip) batch.windows = Tensor::empty({n, 3}, {.dtype = DType::i32});
  return batch;
}

/// The work of filling a batch: any thread may do it, and nothing but its indices decides the result.
std::function<void()> Loader::gathering(const HostBatch& batch) const {
  return [set = set_, transform = options_.transform, seed = options_.seed, epoch = batch.epoch,
          indices = batch.indices, pixel = static_cast<std::uint8_t*>(batch.images.raw_mutable_data()),
          label = static_cast<std::int64_t*>(batch.labels.raw_mutable_data()),
          window = batch.windows.defined() ? static_cast<std::int32_t*>(batch.windows.raw_mutable_data())
                                           : nullptr]() mutable {
    for (const std::int64_t index : indices) {
      const std::span<const std::uint8_t> image = set->image(index);
      std::memcpy(pixel, image.data(), image.size());
      if (transform) transform(std::span(pixel, image.size()), *set, augment_key(seed, epoch, index));
      if (window) {
        draw_window(augment_key(seed, epoch, index), window);
        window += 3;
      }
      pixel += image.size();
      *label++ = set->labels[static_cast<std::size_t>(index)];
    }
  };
}

Loader::HostBatch Loader::take(std::int64_t epoch, std::int64_t b) const {
  if (prefetch_ && prefetch_->batch.epoch >= 0) {
    HostBatch batch = std::exchange(prefetch_->batch, {});
    prefetch_->worker.wait();
    if (batch.epoch == epoch && batch.b == b) return batch;
  }
  HostBatch batch = allocate(epoch, b);
  gathering(batch)();
  return batch;
}

Batch Loader::load(std::int64_t epoch, std::int64_t b, const Batch& into) const {
  const HostBatch batch = take(epoch, b);
  if (prefetch_ && b + 1 < batches()) {
    HostBatch next = allocate(epoch, b + 1);
    std::function<void()> task = gathering(next);
    prefetch_->batch = std::move(next);
    prefetch_->worker.start(std::move(task));
  }
  Batch result = into;
  if (!result.images.defined()) {
    result.images = Tensor::empty(batch.images.shape(), {.dtype = options_.dtype, .device = options_.device});
  }
  const Tensor windows = batch.windows.defined() ? batch.windows.to(options_.device) : Tensor();
  ops::normalize_images_into(result.images, batch.images.to(options_.device), mean_, stddev_, windows);
  if (result.labels.defined()) {
    result.labels.copy_(batch.labels);
  } else {
    result.labels = batch.labels.to(options_.device);
  }
  return result;
}

Loader::Iterator Loader::begin() {
  Iterator first;
  first.loader_ = this;
  first.epoch_ = epoch_++;
  return first;
}

Loader::Iterator Loader::end() const {
  Iterator past;
  past.loader_ = this;
  past.b_ = batches();
  return past;
}

}  // namespace cuttle::data
