#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <stdexcept>

#include "cuttle/data.hpp"
#include "cuttle/error.hpp"

using namespace cuttle;
using data::ImageSet;
using data::Loader;
using data::LoaderOptions;

namespace {

/// Images of two pixels; the first is the index, so that a batch shows what was taken.
ImageSet numbered(std::int64_t count) {
  ImageSet set;
  set.name = "numbered";
  set.height = 1;
  set.width = 2;
  for (std::int64_t i = 0; i < count; ++i) {
    set.pixels.push_back(static_cast<std::uint8_t>(i));
    set.pixels.push_back(255);
    set.labels.push_back(i % 10);
  }
  for (int i = 0; i < 10; ++i) set.classes.push_back(std::to_string(i));
  set.mean = {0.25f};
  set.stddev = {0.5f};
  return set;
}

std::vector<std::int64_t> epoch_order(const Loader& loader, std::int64_t epoch) {
  std::vector<std::int64_t> order;
  for (std::int64_t b = 0; b < loader.batches(); ++b) {
    const auto indices = loader.indices(epoch, b);
    order.insert(order.end(), indices.begin(), indices.end());
  }
  return order;
}

std::vector<std::vector<float>> epoch_images(const Loader& loader, std::int64_t epoch) {
  std::vector<std::vector<float>> images;
  for (std::int64_t b = 0; b < loader.batches(); ++b) images.push_back(loader.load(epoch, b).images.to_vector<float>());
  return images;
}

/// An augmentation as a user would write it: all its randomness comes from the key.
void add_noise(std::span<std::uint8_t> image, const ImageSet&, PhiloxKey key) {
  for (std::uint8_t& pixel : image) {
    pixel = static_cast<std::uint8_t>(pixel + philox4x32(key.seed, key.stream, key.offset++)[0] % 64);
  }
}

}  // namespace

TEST_CASE("a batch holds the images of its indices, normalised, and their labels") {
  const ImageSet set = numbered(10);
  const Loader loader(set, {.batch = 4, .shuffle = true, .seed = 3});
  const auto indices = loader.indices(2, 1);
  const auto [images, labels] = loader.load(2, 1);
  CHECK(images.shape() == Shape{4, 1, 1, 2});
  CHECK(images.dtype() == DType::f32);
  CHECK(images.layout() == Layout::nhwc);
  CHECK(labels.dtype() == DType::i64);
  const auto values = images.to_vector<float>();
  const auto classes = labels.to_vector<std::int64_t>();
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(values[2 * i] == doctest::Approx((static_cast<double>(indices[i]) / 255 - 0.25) / 0.5));
    CHECK(values[2 * i + 1] == doctest::Approx(1.5));
    CHECK(classes[i] == indices[i]);
  }
}

TEST_CASE("colour images keep logical N,C,H,W order") {
  ImageSet set = data::synthetic(2, 3, 2, 2, 4);
  std::iota(set.pixels.begin(), set.pixels.end(), std::uint8_t{0});
  set.mean = {0, 0, 0};
  set.stddev = {1, 1, 1};
  const Loader loader(set, {.batch = 2});
  const auto values = loader.load(0, 0).images.to_vector<float>();
  // Pixel (n, h, w, c) of the set is 12n + 6h + 3w + c.
  for (int n = 0, at = 0; n < 2; ++n) {
    for (int c = 0; c < 3; ++c) {
      for (int p = 0; p < 4; ++p, ++at) CHECK(values[at] == doctest::Approx((12 * n + 3 * p + c) / 255.0));
    }
  }
}

TEST_CASE("an epoch takes every image once, the last batch being what is left") {
  const ImageSet set = numbered(103);
  const Loader loader(set, {.batch = 10, .shuffle = true});
  CHECK(loader.batches() == 11);
  CHECK(loader.indices(0, 10).size() == 3);
  auto order = epoch_order(loader, 0);
  std::ranges::sort(order);
  std::vector<std::int64_t> all(103);
  std::iota(all.begin(), all.end(), 0);
  CHECK(order == all);

  const Loader dropping(set, {.batch = 10, .shuffle = true, .drop_last = true});
  CHECK(dropping.batches() == 10);
  CHECK(epoch_order(dropping, 0).size() == 100);
  CHECK_THROWS_AS(dropping.indices(0, 10), UsageError);
  CHECK(epoch_order(Loader(set, {.batch = 10}), 5) == all);
}

TEST_CASE("a single image that is left joins the batch before it, in every size of set and batch") {
  for (std::int64_t images = 1; images <= 20; ++images) {
    const ImageSet set = numbered(images);
    for (std::int64_t batch = 1; batch <= images; ++batch) {
      CAPTURE(images);
      CAPTURE(batch);
      const Loader loader(set, {.batch = batch, .shuffle = true});
      std::vector<std::int64_t> seen;
      for (std::int64_t b = 0; b < loader.batches(); ++b) {
        const std::vector<std::int64_t> indices = loader.indices(0, b);
        const auto size = static_cast<std::int64_t>(indices.size());
        const bool last = b + 1 == loader.batches();
        CHECK((size == batch || (last && size > 1 && size <= batch + 1)));
        CHECK(loader.load(0, b).images.size(0) == size);
        seen.insert(seen.end(), indices.begin(), indices.end());
      }
      std::ranges::sort(seen);
      std::vector<std::int64_t> all(static_cast<std::size_t>(images));
      std::iota(all.begin(), all.end(), 0);
      CHECK(seen == all);
      CHECK(Loader(set, {.batch = batch, .drop_last = true}).batches() == images / batch);
    }
  }
}

TEST_CASE("the order depends on seed and epoch alone") {
  const ImageSet set = numbered(100);
  const Loader a(set, {.batch = 7, .shuffle = true, .seed = 1}), b(set, {.batch = 32, .shuffle = true, .seed = 1});
  const Loader other_seed(set, {.batch = 7, .shuffle = true, .seed = 2});
  const auto third = epoch_order(a, 3);
  CHECK(epoch_order(b, 3) == third);  // whatever the batch, whatever was loaded before
  CHECK(epoch_order(a, 4) != third);
  CHECK(epoch_order(a, 3) == third);
  CHECK(epoch_order(other_seed, 3) != third);
}

TEST_CASE("shuffling favours no place") {
  const ImageSet set = numbered(8);
  const Loader loader(set, {.batch = 8, .shuffle = true});
  std::vector<int> first(8), last(8);
  constexpr int kEpochs = 8000;
  for (int epoch = 0; epoch < kEpochs; ++epoch) {
    const auto order = loader.indices(epoch, 0);
    ++first[static_cast<std::size_t>(order.front())];
    ++last[static_cast<std::size_t>(order.back())];
  }
  // 1000 +- 5 standard deviations of a binomial count.
  for (const int count : first) CHECK(std::abs(count - 1000) < 150);
  for (const int count : last) CHECK(std::abs(count - 1000) < 150);
}

TEST_CASE("augmentation is the same whatever the threads, the workers and the batch") {
  const ImageSet set = numbered(60);
  LoaderOptions options{.batch = 8, .shuffle = true, .seed = 9, .transform = add_noise};
  const int threads = num_threads();
  set_num_threads(1);
  options.num_workers = 0;
  const auto reference = epoch_images(Loader(set, options), 1);
  options.num_workers.reset();
  for (const int n : {1, 2, 5}) {
    set_num_threads(n);
    CHECK(epoch_images(Loader(set, options), 1) == reference);
  }
  set_num_threads(threads);

  // A sample is the same in a batch of another size, and another one in another epoch.
  options.batch = 60;
  const Loader whole(set, options);
  const auto one = whole.load(1, 0).images.to_vector<float>(), two = whole.load(2, 0).images.to_vector<float>();
  const auto order_one = whole.indices(1, 0), order_two = whole.indices(2, 0);
  std::size_t different = 0;
  for (std::size_t i = 0; i < 60; ++i) {
    CHECK(one[2 * i] == reference[i / 8][2 * (i % 8)]);
    const auto j = static_cast<std::size_t>(std::ranges::find(order_two, order_one[i]) - order_two.begin());
    different += one[2 * i + 1] != two[2 * j + 1];
  }
  CHECK(different > 40);
  // Pixel 1 is 255 in every image before the noise: images must not share their draws.
  std::set<float> noise;
  for (std::size_t i = 0; i < 60; ++i) noise.insert(one[2 * i + 1]);
  CHECK(noise.size() > 20);
}

TEST_CASE("crop_flip moves by up to 4 pixels and mirrors every second image, from seed, epoch and index alone") {
  constexpr std::int64_t kCount = 2000, kSide = 9;
  ImageSet set;
  set.height = set.width = kSide;
  set.labels.assign(kCount, 0);
  set.classes = {"0"};
  set.mean = {0};
  set.stddev = {1};
  // One bright pixel in the middle, which no move takes out of sight, and a dim one to its right.
  std::vector<std::uint8_t> image(kSide * kSide);
  image[4 * kSide + 4] = 255;
  image[4 * kSide + 5] = 51;
  for (std::int64_t i = 0; i < kCount; ++i) set.pixels.insert(set.pixels.end(), image.begin(), image.end());

  LoaderOptions options{.batch = kCount, .seed = 3, .crop_flip = true};
  const Loader loader(set, options);
  const auto values = loader.load(0, 0).images.to_vector<float>();
  std::vector<int> places(kSide * kSide);
  int right = 0, left = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(i) * kSide * kSide, end = begin + kSide * kSide;
    const auto place = std::find(begin, end, 1.0f) - begin;
    const auto dim = std::find_if(begin, end, [](float v) { return v > 0.1f && v < 0.3f; }) - begin;
    REQUIRE(place < kSide * kSide);
    ++places[static_cast<std::size_t>(place)];
    right += dim == place + 1;
    left += dim == place - 1;
    // The dim one is out of sight only beyond the edge that its neighbour stands at.
    if (dim == kSide * kSide) CHECK((place % kSide == 0 || place % kSide == kSide - 1));
  }
  // 24.7 +- 5 standard deviations, at each of the 81 places; 8/9 of 1000 +- 5.
  for (const int n : places) CHECK(std::abs(n - 25) < 26);
  CHECK(std::abs(right - 889) < 112);
  CHECK(std::abs(left - 889) < 112);
  CHECK(loader.load(1, 0).images.to_vector<float>() != values);

  options.batch = 700;
  options.num_workers = 0;
  const auto second = Loader(set, options).load(0, 1).images.to_vector<float>();
  CHECK(std::equal(second.begin(), second.end(), values.begin() + 700 * kSide * kSide));
}

TEST_CASE("a run that stops within an epoch goes on with the same batches") {
  const ImageSet set = numbered(50);
  const LoaderOptions options{.batch = 8, .shuffle = true, .seed = 4, .transform = add_noise};
  const auto whole = epoch_images(Loader(set, options), 6);
  const Loader resumed(set, options);
  for (std::int64_t b = 3; b < resumed.batches(); ++b) {
    CHECK(resumed.load(6, b).images.to_vector<float>() == whole[static_cast<std::size_t>(b)]);
  }
  // Jumping about must not serve a batch that was gathered for another place.
  CHECK(resumed.load(6, 0).images.to_vector<float>() == whole[0]);
  CHECK(resumed.load(6, 5).images.to_vector<float>() == whole[5]);
  CHECK(resumed.load(7, 6).images.to_vector<float>() != whole[6]);
  CHECK(resumed.load(6, 6).images.to_vector<float>() == whole[6]);
}

TEST_CASE("a range-for runs one epoch, the next one the next") {
  const ImageSet set = numbered(20);
  Loader loader(set, {.batch = 6, .shuffle = true});
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    CHECK(loader.next_epoch() == epoch);
    std::int64_t b = 0;
    for (auto [images, labels] : loader) {
      CHECK(labels.to_vector<std::int64_t>() == loader.load(epoch, b).labels.to_vector<std::int64_t>());
      ++b;
    }
    CHECK(b == 4);
  }
  loader.set_next_epoch(1);
  CHECK((*loader.begin()).labels.to_vector<std::int64_t>() == loader.load(1, 0).labels.to_vector<std::int64_t>());
}

TEST_CASE("a failing transform reaches the caller") {
  const ImageSet set = numbered(20);
  const auto transform = [](std::span<std::uint8_t> image, const ImageSet&, PhiloxKey) {
    if (image[0] == 7) throw std::runtime_error("image 7");
  };
  const Loader loader(set, {.batch = 5, .transform = transform});
  CHECK_NOTHROW(loader.load(0, 0));
  CHECK_THROWS_WITH(loader.load(0, 1), "image 7");
  CHECK_NOTHROW(loader.load(0, 2));
}

TEST_CASE("a loader moves with the batch it has gathered ahead") {
  const ImageSet set = numbered(20);
  Loader loader(set, {.batch = 5, .shuffle = true});
  loader.load(0, 0);
  const auto expected = Loader(set, {.batch = 5, .shuffle = true, .num_workers = 0}).load(0, 1);
  const Loader moved = std::move(loader);
  CHECK(moved.load(0, 1).images.to_vector<float>() == expected.images.to_vector<float>());
}

TEST_CASE("a batch comes into the tensors that are given, with the bits that new ones would have") {
  const ImageSet set = data::synthetic(20, 3, 5, 4, 10);
  for (const DType dtype : {DType::f32, DType::f16}) {
    const Loader loader(set, {.batch = 8, .shuffle = true, .dtype = dtype, .crop_flip = true});
    const data::Batch expected = loader.load(1, 1), given = loader.load(0, 0);
    const std::uint32_t version = given.images.version();
    const data::Batch got = loader.load(1, 1, given);
    CHECK(got.images.impl() == given.images.impl());
    CHECK(got.labels.impl() == given.labels.impl());
    CHECK(given.images.version() > version);
    CHECK(given.images.to_vector<float>() == expected.images.to_vector<float>());
    CHECK(given.labels.to_vector<std::int64_t>() == expected.labels.to_vector<std::int64_t>());
    // One of the two may be given alone.
    const data::Batch half = loader.load(0, 1, {.images = given.images, .labels = {}});
    CHECK(half.images.impl() == given.images.impl());
    CHECK(half.labels.to_vector<std::int64_t>() == loader.load(0, 1).labels.to_vector<std::int64_t>());
    // The last batch is smaller.
    CHECK_THROWS_AS(loader.load(1, 2, given), ShapeError);
    CHECK_THROWS_AS(loader.load(1, 1, {.images = Tensor::empty({8, 3, 5, 4}, {.dtype = DType::u8}), .labels = {}}),
                    DtypeError);
    CHECK_THROWS_AS(loader.load(1, 1, {.images = Tensor::empty({8, 3, 5, 4}, {.layout = Layout::nchw}), .labels = {}}),
                    ShapeError);
  }
}

TEST_CASE("an impossible batch size is refused with both numbers") {
  const ImageSet set = numbered(20);
  CHECK_THROWS_WITH_AS(Loader(set, {.batch = 0}), doctest::Contains("batch of 0"), UsageError);
  CHECK_THROWS_AS(Loader(set, {.batch = -5}), UsageError);
  CHECK_THROWS_WITH_AS(Loader(set, {.batch = 21}),
                       doctest::Contains("21 images is larger than the set 'numbered' of 20"), UsageError);
  CHECK_NOTHROW(Loader(set, {.batch = 20}));
  CHECK_THROWS_AS(Loader(ImageSet{}, {.batch = 1}), UsageError);
  ImageSet short_of_pixels = numbered(20);
  short_of_pixels.pixels.pop_back();
  CHECK_THROWS_AS(Loader(short_of_pixels, {.batch = 1}), UsageError);
}
