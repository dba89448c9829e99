#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cuttle/tensor.hpp"

namespace cuttle::data {

enum class Split : std::uint8_t { train, test };

/// Labelled images of one size, u8 N,H,W,C in one piece of host memory (not from the allocator: it is input, not
/// working memory).
struct ImageSet {
  std::string name;  ///< "mnist"
  std::int64_t channels = 1, height = 0, width = 0;
  std::vector<std::uint8_t> pixels;  ///< N*H*W*C
  std::vector<std::int64_t> labels;  ///< N, each in [0, classes)
  std::vector<std::string> classes;  ///< names
  std::vector<float> mean, stddev;   ///< of each channel, for values in [0,1]

  std::int64_t size() const { return static_cast<std::int64_t>(labels.size()); }
  std::int64_t image_bytes() const { return channels * height * width; }
  std::span<const std::uint8_t> image(std::int64_t i) const;
};

/// MNIST and sets in its format: (train|t10k)-(images|labels)-idx?-ubyte[.gz] in `directory`. Throws DataError naming
/// the file: missing, not IDX, of another magic, truncated, with trailing bytes, empty, counts that differ, label
/// range.
ImageSet mnist(const std::string& directory, Split split);
/// Any pair of IDX files (gzipped or not).
ImageSet idx(const std::string& images_file, const std::string& labels_file);
/// Random images and labels of the given shape, from (seed, kStreamSynthetic).
ImageSet synthetic(std::int64_t count, std::int64_t channels, std::int64_t height, std::int64_t width,
                   std::int64_t classes, std::uint64_t seed = 0);
/// What `--data PATH` names, recognised by what lies there.
ImageSet open(const std::string& path, Split split);

struct Batch {
  Tensor images;  ///< f32[N,C,H,W], normalised
  Tensor labels;  ///< i64[N]
};

struct LoaderOptions {
  std::int64_t batch = 128;
  bool shuffle = false;
  bool drop_last = false;
  std::uint64_t seed = 0;
  Device device = kCpu;
};

/// Batches of an image set, epoch by epoch: `for (auto [images, labels] : loader)` runs one epoch; the next loop runs
/// the next one in another order. The order depends on (seed, epoch) alone. The set must outlive the loader.
class Loader {
 public:
  /// Throws UsageError if batch < 1 or the set is empty, or if drop_last leaves nothing.
  Loader(const ImageSet& set, LoaderOptions options);

  std::int64_t batches() const;  ///< in an epoch
  /// Indices of batch b of an epoch.
  std::vector<std::int64_t> indices(std::int64_t epoch, std::int64_t b) const;
  Batch load(std::int64_t epoch, std::int64_t b) const;

  class Iterator {
   public:
    Batch operator*() const { return loader_->load(epoch_, b_); }
    Iterator& operator++() {
      ++b_;
      return *this;
    }
    bool operator!=(const Iterator& other) const { return b_ != other.b_; }

   private:
    friend class Loader;
    const Loader* loader_ = nullptr;
    std::int64_t epoch_ = 0, b_ = 0;
  };
  Iterator begin();  ///< of the next epoch
  Iterator end() const;
  std::int64_t next_epoch() const { return epoch_; }
  void set_next_epoch(std::int64_t epoch) { epoch_ = epoch; }

 private:
  const ImageSet* set_;
  LoaderOptions options_;
  std::int64_t epoch_ = 0;
  mutable std::int64_t order_epoch_ = -1;
  mutable std::vector<std::int64_t> order_;
  Tensor mean_, stddev_;
};

/// A picture as decoded: u8 H,W,C.
struct Picture {
  std::int64_t height = 0, width = 0, channels = 0;
  std::vector<std::uint8_t> pixels;
};
/// PNG, JPEG, BMP or PGM; throws DataError naming the file and the reason.
Picture read_picture(const std::string& file);
/// To `channels` (1 or 3) and size height x width: colour to grey by luma, resized with an antialiasing filter.
Picture convert_picture(const Picture& picture, std::int64_t channels, std::int64_t height, std::int64_t width);
/// Normalised f32[1,C,H,W] of a converted picture.
Tensor to_tensor(const Picture& picture, std::span<const float> mean, std::span<const float> stddev,
                 Device device = kCpu);
std::vector<std::uint8_t> encode_png(const Picture& picture);

}  // namespace cuttle::data
