#include "cuttle/data.hpp"

#include <doctest/doctest.h>
#include <zlib.h>

#include <filesystem>
#include <functional>
#include <set>

#include "cuttle/error.hpp"
#include "support/source_folder.hpp"
#include "support/temporary_folder.hpp"

using namespace cuttle;
using data::ImageSet;
using data::Split;
using Bytes = std::vector<std::uint8_t>;

namespace {

const std::string kMnist = source_folder() + "/data/mnist";
constexpr const char* kTrainImages = "train-images-idx3-ubyte";
constexpr const char* kTrainLabels = "train-labels-idx1-ubyte";

void append_big_endian(Bytes& bytes, std::uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<std::uint8_t>(value >> shift));
}

Bytes idx_file(const std::vector<std::uint32_t>& sizes, const Bytes& values) {
  Bytes bytes{0, 0, 8, static_cast<std::uint8_t>(sizes.size())};
  for (const std::uint32_t size : sizes) append_big_endian(bytes, size);
  bytes.insert(bytes.end(), values.begin(), values.end());
  return bytes;
}

Bytes gzipped(const Bytes& plain) {
  z_stream stream{};
  REQUIRE(deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  Bytes packed(deflateBound(&stream, plain.size()));
  stream.next_in = const_cast<Bytef*>(plain.data());
  stream.avail_in = static_cast<uInt>(plain.size());
  stream.next_out = packed.data();
  stream.avail_out = static_cast<uInt>(packed.size());
  REQUIRE(deflate(&stream, Z_FINISH) == Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

Bytes counting(std::size_t n) {
  Bytes values(n);
  for (std::size_t i = 0; i < n; ++i) values[i] = static_cast<std::uint8_t>(i * 7);
  return values;
}

const Bytes kImages = idx_file({3, 4, 5}, counting(60));
const Bytes kLabels = idx_file({3}, {2, 0, 9});

/// The cause of the DataError that reading throws; it must name the file.
std::string cause(const std::function<void()>& read, const std::string& file) {
  try {
    read();
  } catch (const DataError& error) {
    CHECK_MESSAGE(error.cause().find(file) != std::string::npos, error.cause());
    return error.cause();
  }
  FAIL_CHECK("no DataError");
  return {};
}

std::string images_cause(const Bytes& images, const std::string& name = "images") {
  const TemporaryFolder folder;
  write_bytes(folder.file(name), images);
  write_bytes(folder.file("labels"), kLabels);
  return cause([&] { data::idx(folder.file(name), folder.file("labels")); }, folder.file(name));
}

std::string labels_cause(const Bytes& labels) {
  const TemporaryFolder folder;
  write_bytes(folder.file("images"), kImages);
  write_bytes(folder.file("labels"), labels);
  return cause([&] { data::idx(folder.file("images"), folder.file("labels")); }, folder.file("labels"));
}

bool contains(const std::string& text, const std::string& part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("MNIST in the tree is read whole, with PyTorch's statistics") {
  const ImageSet train = data::mnist(kMnist, Split::train), test = data::open(kMnist, Split::test);
  CHECK(train.name == "mnist");
  CHECK(train.size() == 60000);
  CHECK(test.size() == 10000);
  CHECK(train.pixels.size() == 60000u * 28 * 28);
  for (const ImageSet* set : {&train, &test}) {
    CHECK(set->height == 28);
    CHECK(set->width == 28);
    CHECK(set->channels == 1);
    CHECK(set->mean == std::vector<float>{0.1307f});
    CHECK(set->stddev == std::vector<float>{0.3081f});
    CHECK(set->classes.size() == 10);
    CHECK(set->classes.back() == "9");
  }
  // The first labels of both files as every tutorial shows them.
  CHECK(std::vector(train.labels.begin(), train.labels.begin() + 5) == std::vector<std::int64_t>{5, 0, 4, 1, 9});
  CHECK(std::vector(test.labels.begin(), test.labels.begin() + 5) == std::vector<std::int64_t>{7, 2, 1, 0, 4});
  CHECK(train.image(0)[5 * 28 + 12] == 3);  // first ink of the first digit
}

TEST_CASE("plain and gzipped IDX files give the same set") {
  const TemporaryFolder folder;
  write_bytes(folder.file("images"), kImages);
  write_bytes(folder.file("images.gz"), gzipped(kImages));
  write_bytes(folder.file("labels"), kLabels);
  write_bytes(folder.file("labels.gz"), gzipped(kLabels));
  for (const std::string suffix : {"", ".gz"}) {
    const ImageSet set = data::idx(folder.file("images" + suffix), folder.file("labels" + suffix));
    CHECK(set.height == 4);
    CHECK(set.width == 5);
    CHECK(set.pixels == counting(60));
    CHECK(set.labels == std::vector<std::int64_t>{2, 0, 9});
    CHECK(set.image(2)[0] == static_cast<std::uint8_t>(40 * 7));
    CHECK_THROWS_AS(set.image(3), UsageError);
  }
}

TEST_CASE("a gzip file of several members is read through") {
  const TemporaryFolder folder;
  Bytes packed = gzipped({kImages.begin(), kImages.begin() + 30});
  const Bytes second = gzipped({kImages.begin() + 30, kImages.end()});
  packed.insert(packed.end(), second.begin(), second.end());
  write_bytes(folder.file("images.gz"), packed);
  write_bytes(folder.file("labels"), kLabels);
  CHECK(data::idx(folder.file("images.gz"), folder.file("labels")).pixels == counting(60));
}

TEST_CASE("a set that is not MNIST gets the statistics of its training pixels, for both splits") {
  const TemporaryFolder folder;
  write_bytes(folder.file(kTrainImages), idx_file({2, 1, 2}, {0, 255, 255, 255}));
  write_bytes(folder.file(kTrainLabels), idx_file({2}, {0, 1}));
  write_bytes(folder.file("t10k-images-idx3-ubyte"), idx_file({1, 1, 2}, {7, 8}));
  write_bytes(folder.file("t10k-labels-idx1-ubyte"), idx_file({1}, {1}));
  for (const Split split : {Split::train, Split::test}) {
    const ImageSet set = data::open(folder.path(), split);
    CHECK(set.name == std::filesystem::path(folder.path()).filename().string());
    CHECK(set.mean[0] == doctest::Approx(0.75));
    CHECK(set.stddev[0] == doctest::Approx(0.4330127));  // sqrt(3)/4
  }
}

TEST_CASE("constant images do not lead to a division by zero") {
  const TemporaryFolder folder;
  write_bytes(folder.file("images"), idx_file({2, 1, 1}, {9, 9}));
  write_bytes(folder.file("labels"), idx_file({2}, {0, 1}));
  CHECK(data::idx(folder.file("images"), folder.file("labels")).stddev[0] == 1.0f);
}

TEST_CASE("classes.txt names the classes and bounds the labels") {
  const TemporaryFolder folder;
  write_bytes(folder.file("images"), kImages);
  write_bytes(folder.file("labels"), idx_file({3}, {2, 0, 11}));
  const auto read = [&] { return data::idx(folder.file("images"), folder.file("labels")); };
  CHECK(contains(cause([&] { read(); }, folder.file("labels")), "image 2 the label 11, but there are 10 classes"));

  std::ofstream names(folder.file("classes.txt"));
  for (char c = 'a'; c <= 'l'; ++c) names << c << "\r\n";
  names.close();
  CHECK(read().classes.size() == 12);
  CHECK(read().classes[11] == "l");

  std::ofstream(folder.file("classes.txt")) << "\n\n";
  cause([&] { read(); }, folder.file("classes.txt"));
  std::ofstream(folder.file("classes.txt")) << "caf\xc3\xa9\n\ncaf\xe9\n";
  CHECK(contains(cause([&] { read(); }, folder.file("classes.txt")), "line 3"));
}

TEST_CASE("missing and empty files are named") {
  const TemporaryFolder folder;
  write_bytes(folder.file(kTrainImages), kImages);
  CHECK(contains(cause([&] { data::mnist(folder.path(), Split::train); }, folder.path()), kTrainLabels));
  CHECK(contains(cause([&] { data::idx(folder.file("no"), folder.file("labels")); }, folder.file("no")), "not there"));
  CHECK(contains(cause([&] { data::idx(folder.path(), folder.path()); }, folder.path()), "not a file"));
  CHECK(contains(images_cause({}), "is empty"));
  CHECK(contains(labels_cause({}), "is empty"));
}

TEST_CASE("a folder or path that is no dataset is refused with what was looked for") {
  const TemporaryFolder folder;
  CHECK(contains(cause([&] { data::open(folder.path(), Split::train); }, folder.path()), kTrainImages));
  CHECK(contains(cause([&] { data::open(folder.path(), Split::test); }, folder.path()), "t10k-labels-idx1-ubyte"));
  cause([&] { data::open(folder.file("nowhere"), Split::train); }, folder.file("nowhere"));
  write_bytes(folder.file("plain"), kImages);
  CHECK(contains(cause([&] { data::open(folder.file("plain"), Split::train); }, folder.file("plain")), "is a file"));
  const std::string endless(5000, 'x');  // longer than any path may be
  CHECK_THROWS_AS(data::open(endless, Split::train), DataError);
}

TEST_CASE("files of another kind are told from IDX files") {
  CHECK(contains(images_cause({0x89, 'P', 'N', 'G', 1, 2, 3, 4}), "begins with 89 50 4e 47"));
  CHECK(contains(images_cause(kLabels), "rank 1, where images have rank 3"));
  CHECK(contains(labels_cause(kImages), "rank 3, where labels have rank 1"));
  Bytes floats = kImages;
  floats[2] = 0x0D;
  CHECK(contains(images_cause(floats), "type f32"));
  floats[2] = 0x01;
  CHECK(contains(images_cause(floats), "not an IDX file"));
  CHECK(contains(images_cause(kImages, "images.gz"), "not gzip data"));
}

TEST_CASE("a truncated file says how many bytes are there and how many are wanted") {
  for (const std::size_t length : {1u, 3u, 4u, 9u, 15u, 16u, 40u, 75u}) {
    CAPTURE(length);
    const Bytes cut(kImages.begin(), kImages.begin() + static_cast<std::ptrdiff_t>(length));
    const std::string wanted = length < 4 ? "4 are wanted" : length < 16 ? "16 are wanted" : "76 are wanted";
    CHECK(contains(images_cause(cut), std::to_string(length) + " bytes are there, " + wanted));
    CHECK(contains(images_cause(gzipped(cut), "images.gz"), wanted));
  }
}

TEST_CASE("gzip data cut off anywhere is an error, never a shorter set") {
  const Bytes packed = gzipped(kImages);
  for (std::size_t length = 1; length < packed.size(); ++length) {
    CAPTURE(length);
    images_cause({packed.begin(), packed.begin() + static_cast<std::ptrdiff_t>(length)}, "images.gz");
  }
}

TEST_CASE("a changed byte of gzip data is an error, or changes nothing") {
  const TemporaryFolder folder;
  write_bytes(folder.file("labels"), kLabels);
  const Bytes packed = gzipped(kImages);
  for (std::size_t at = 0; at < packed.size(); ++at) {
    CAPTURE(at);
    Bytes changed = packed;
    changed[at] ^= 0x55;
    write_bytes(folder.file("images.gz"), changed);
    Bytes pixels;
    try {
      pixels = data::idx(folder.file("images.gz"), folder.file("labels")).pixels;
    } catch (const DataError& error) {
      CHECK(error.cause().find("images.gz") != std::string::npos);
      continue;
    }
    CHECK(pixels == counting(60));
  }
}

TEST_CASE("bytes behind the data are an error, packed or not") {
  Bytes longer = kImages;
  longer.push_back(1);
  CHECK(contains(images_cause(longer), "bytes behind the 76"));
  CHECK(contains(images_cause(gzipped(longer), "images.gz"), "bytes behind the 76"));
  Bytes packed = gzipped(kImages);
  packed.push_back('x');
  CHECK(contains(images_cause(packed, "images.gz"), "behind its gzip data"));
}

TEST_CASE("hostile sizes are refused before anything is allocated for them") {
  constexpr std::uint32_t kHuge = 0x80000000u, kLargest = 0xFFFFFFFFu;
  CHECK(contains(images_cause(idx_file({kHuge, kHuge, kHuge}, {1})), "impossible sizes"));
  CHECK(contains(images_cause(idx_file({kLargest, kLargest, 1}, {1})), "impossible sizes"));
  CHECK(contains(images_cause(idx_file({kHuge, kHuge, 1}, {1})), "4611686018427387920 are wanted"));
  CHECK(contains(images_cause(gzipped(idx_file({kHuge, kHuge, 1}, {1})), "images.gz"), "unpack to at most"));
  CHECK(contains(labels_cause(idx_file({kLargest}, {1})), "4294967303 are wanted"));
  CHECK(contains(images_cause(idx_file({0, 4, 5}, {})), "holds no images"));
  CHECK(contains(images_cause(idx_file({3, 0, 5}, {})), "holds no images"));
  CHECK(contains(labels_cause(idx_file({0}, {})), "holds no labels"));
}

TEST_CASE("images and labels of different counts, and labels without a class") {
  CHECK(contains(labels_cause(idx_file({2}, {1, 2})), "holds 3 images but"));
  CHECK(contains(labels_cause(idx_file({4}, {1, 2, 3, 4})), "holds 4 labels"));
  CHECK(contains(labels_cause(idx_file({3}, {1, 10, 3})), "image 1 the label 10"));
  CHECK(contains(labels_cause(idx_file({3}, {1, 2, 255})), "image 2 the label 255"));
}

TEST_CASE("CIFAR-10's binary files become interleaved pixels with the training images' statistics") {
  const TemporaryFolder folder;
  Bytes one{3};
  for (int plane = 0; plane < 3; ++plane) {
    for (int i = 0; i < 1024; ++i) one.push_back(static_cast<std::uint8_t>(50 * plane + i % 50));
  }
  for (int n = 1; n <= 5; ++n) write_bytes(folder.file("data_batch_" + std::to_string(n) + ".bin"), one);
  Bytes dark(3073, 0);
  dark[0] = 9;
  write_bytes(folder.file("test_batch.bin.gz"), gzipped(dark));
  const ImageSet train = data::open(folder.path(), Split::train), test = data::open(folder.path(), Split::test);
  CHECK(train.size() == 5);
  CHECK(train.labels == std::vector<std::int64_t>(5, 3));
  CHECK(train.classes[3] == "cat");
  const auto image = train.image(4);
  for (std::size_t i : {0u, 77u, 1023u}) {
    for (std::size_t c = 0; c < 3; ++c) CHECK(image[3 * i + c] == 50 * c + i % 50);
  }
  CHECK(test.size() == 1);
  CHECK(test.mean == train.mean);
  CHECK(test.mean[2] == doctest::Approx((100 + 24.195) / 255).epsilon(1e-4));

  write_bytes(folder.file("data_batch_2.bin"), Bytes(one.begin(), one.end() - 1));
  CHECK(
      cause([&] { data::open(folder.path(), Split::train); }, "data_batch_2.bin").find("3072 bytes, 3073 are wanted") !=
      std::string::npos);
  one[0] = 10;
  write_bytes(folder.file("data_batch_2.bin"), one);
  CHECK(cause([&] { data::open(folder.path(), Split::train); }, "data_batch_2.bin").find("label 10") !=
        std::string::npos);
}

TEST_CASE("synthetic images are uniform, reproducible and as asked") {
  const ImageSet a = data::synthetic(500, 3, 8, 6, 7, 42), b = data::synthetic(500, 3, 8, 6, 7, 42);
  CHECK(a.pixels == b.pixels);
  CHECK(a.labels == b.labels);
  CHECK(data::synthetic(500, 3, 8, 6, 7, 43).pixels != a.pixels);
  CHECK(a.pixels.size() == 500u * 3 * 8 * 6);
  CHECK(std::set(a.labels.begin(), a.labels.end()) == std::set<std::int64_t>{0, 1, 2, 3, 4, 5, 6});
  REQUIRE(a.mean.size() == 3);
  for (const float mean : a.mean) CHECK(mean == doctest::Approx(0.5).epsilon(0.02));
  for (const float stddev : a.stddev) CHECK(stddev == doctest::Approx(0.28981).epsilon(0.02));  // of 0..255 / 255
  CHECK_THROWS_AS(data::synthetic(0, 1, 8, 8, 10), UsageError);
  CHECK_THROWS_AS(data::synthetic(1, 1, 8, 8, 0), UsageError);
}
