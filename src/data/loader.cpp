#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <numeric>
#include <utility>

#include "core/capture.hpp"
#include "cuttle/data.hpp"
#include "cuttle/error.hpp"
#include "cuttle/threads.hpp"
#include "data/batch_count.hpp"
#include "data/gatherer.hpp"
#include "kernels.hpp"
#include "ops/elementwise.hpp"

namespace cuttle::data {

/// A batch on the device, or on its way there.
struct Loader::Staged {
  Place place;
  RawBatch batch;
  std::unique_ptr<Upload> upload;  // to be joined before the batch is used
  std::exception_ptr failure;      // instead of the batch: what its load() throws
};

/// What is done before it is asked for: while step b runs, batch b+1 goes to the device and b+2 is gathered.
struct Loader::Pipeline {
  Pipeline(const ImageSet& set, const LoaderOptions& options) : gatherer(set, options) {}
  Staged staged;
  Place gathering;
  Gatherer gatherer;
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

int default_workers() { return std::clamp(num_threads() / 4, 1, 8); }

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
  if (!options_.num_workers) options_.num_workers = default_workers();
  if (*options_.num_workers < 0 || *options_.num_workers > kMostThreads) {
    throw UsageError(fmt::format("{} workers of a loader are impossible", *options_.num_workers),
                     fmt::format("give 0 to {}", kMostThreads));
  }
  pipeline_ = std::make_unique<Pipeline>(set, options_);
}

Loader::~Loader() = default;
Loader::Loader(Loader&&) noexcept = default;
Loader& Loader::operator=(Loader&&) noexcept = default;

std::int64_t Loader::batches() const {
  return options_.drop_last ? set_->size() / options_.batch : batch_count(set_->size(), options_.batch);
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
  const bool takes_rest = !options_.drop_last && b + 1 == batches();
  const std::int64_t begin = b * options_.batch, end = takes_rest ? set_->size() : begin + options_.batch;
  std::vector<std::int64_t> result(static_cast<std::size_t>(end - begin));
  if (options_.shuffle) {
    std::copy_n(order(epoch).begin() + begin, end - begin, result.begin());
  } else {
    std::iota(result.begin(), result.end(), begin);
  }
  return result;
}

/// Begins to gather a batch. What is made for a later step must not lie in the memory of one that is being recorded.
void Loader::gather(Place place) const {
  const AllocationScope scope(options_.device, 0);
  pipeline_->gatherer.start(place.epoch, indices(place.epoch, place.b));
  pipeline_->gathering = place;
}

/// Starts a batch on its way to the device, where it is not there anyway.
Loader::Staged Loader::stage(Place place) const {
  if (pipeline_->gathering != place) gather(place);
  pipeline_->gathering = {};
  const RawBatch host = pipeline_->gatherer.finish();
  const AllocationScope scope(options_.device, 0);
  const auto upload = backend(options_.device.kind).upload;
  if (!upload) return {place, host.like(host.bytes.to(options_.device)), nullptr, nullptr};
  const Tensor there = Tensor::empty(host.bytes.shape(), {.dtype = DType::u8, .device = options_.device});
  return {place, host.like(there), upload(there, host.bytes.raw_data()), nullptr};
}

Loader::Staged Loader::take(Place place) const {
  Staged staged = std::exchange(pipeline_->staged, {});
  if (staged.place != place) {
    staged = {};  // its memory may serve again
    staged = stage(place);
  }
  if (staged.failure) std::rethrow_exception(staged.failure);
  if (staged.upload) staged.upload->join();
  return staged;
}

void Loader::look_ahead(Place place) const {
  if (++place.b >= batches()) return;
  try {
    pipeline_->staged = stage(place);
  } catch (...) {
    pipeline_->staged = {place, {}, nullptr, std::current_exception()};
  }
  if (++place.b < batches()) gather(place);
}

Batch Loader::load(std::int64_t epoch, std::int64_t b, const Batch& into) const {
  const Place place{epoch, b};
  Staged staged = take(place);
  Batch result = into;
  const RawBatch& raw = staged.batch;
  if (!result.images.defined()) {
    result.images = Tensor::empty(raw.images.shape(), {.dtype = options_.dtype, .device = options_.device});
  }
  if (!result.labels.defined()) {
    result.labels = Tensor::empty(raw.labels.shape(), {.dtype = DType::i64, .device = options_.device});
  }
  ops::normalize_images_into(result.images, raw.images, mean_, stddev_, raw.windows);
  result.labels.copy_(raw.labels);
  staged = {};
  if (options_.num_workers > 0) look_ahead(place);
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
