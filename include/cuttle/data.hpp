#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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

/// MNIST and sets in its format: (train|t10k)-(images-idx3|labels-idx1)-ubyte[.gz] in `directory`, grey images. The
/// classes are "0" to "9", or the lines of classes.txt in the folder. mean and stddev are 0.1307 and 0.3081 for MNIST
/// itself and those of the training images for others (of the test images where the folder has no training images).
/// Throws DataError naming the file: missing, not IDX, of another magic, truncated, with trailing bytes, empty, corrupt
/// gzip, sizes that cannot be, counts that differ, a label without a class.
ImageSet mnist(const std::string& directory, Split split);
/// CIFAR-10's binary version and sets in its format: data_batch_1.bin to data_batch_5.bin, test_batch.bin (each may be
/// gzipped), 32x32 colour images. Classes are the lines of batches.meta.txt, or CIFAR-10's; mean and stddev as in
/// mnist(). Throws DataError naming the file: missing, empty, truncated, corrupt gzip, a label without a class.
ImageSet cifar10(const std::string& directory, Split split);
/// Any pair of IDX files, gzipped or not; mean and stddev are those of the images. Throws as mnist().
ImageSet idx(const std::string& images_file, const std::string& labels_file);
/// Random images and labels of the given shape, from (seed, kStreamSynthetic). Throws UsageError on a size below 1.
ImageSet synthetic(std::int64_t count, std::int64_t channels, std::int64_t height, std::int64_t width,
                   std::int64_t classes, std::uint64_t seed = 0);
/// What `--data PATH` names, recognised by what lies there. Throws DataError listing what it looked for.
ImageSet open(const std::string& path, Split split);

struct Batch {
  Tensor images;  ///< of the loader's dtype, [N,C,H,W], normalised
  Tensor labels;  ///< i64[N]
};

/// Changes one image in place (u8 H,W,C). All its randomness comes from `key`, which depends on (seed, epoch, index of
/// the image) and nothing else; 256 counters from key.offset on are its own. Several threads call it at once.
using ImageTransform = std::function<void(std::span<std::uint8_t> image, const ImageSet& set, PhiloxKey key)>;

struct LoaderOptions {
  std::int64_t batch = 128;
  bool shuffle = false;
  bool drop_last = false;
  std::uint64_t seed = 0;
  Device device = kCpu;
  DType dtype = DType::f32;  ///< of the images; any floating one
  /// Moves each image by up to 4 pixels up, down, left and right, black where nothing is left, and mirrors every second
  /// one: torchvision's RandomCrop(padding=4) and RandomHorizontalFlip. Drawn from (seed, epoch, index of the image).
  bool crop_flip = false;
  ImageTransform transform = {};
  /// Threads that gather the next batches while the caller works on this one; 0: the caller gathers each when it asks
  /// for it. Changes no number. Default: a quarter of num_threads(), 1 to 8.
  std::optional<int> num_workers = {};
};

/// Batches of an image set, epoch by epoch: `for (auto [images, labels] : loader)` runs one epoch; the next loop runs
/// the next one in another order. The order depends on (seed, epoch) alone, so (epoch, b) is all that a resumed run
/// needs. Without drop_last the last batch is what is left, and a single image that is left joins the batch before it,
/// since batch norm cannot learn from one. The set must outlive the loader; one thread at a time may use it.
class Loader {
 public:
  /// Throws UsageError if batch < 1 or larger than the set (which an empty set always is), or on an impossible number
  /// of workers.
  Loader(const ImageSet& set, LoaderOptions options);
  ~Loader();
  Loader(Loader&&) noexcept;
  Loader& operator=(Loader&&) noexcept;

  std::int64_t batches() const;  ///< in an epoch
  /// Indices of batch b of an epoch. Throws UsageError if there is no such batch.
  std::vector<std::int64_t> indices(std::int64_t epoch, std::int64_t b) const;
  /// Batch b of an epoch. With workers the next one is on its way to the device when this returns, so that it comes
  /// beside the work that the caller queues now, and the one after that is being gathered. Where the tensors of `into`
  /// are defined they are changed in place to hold it, else it lies in new ones. Throws ShapeError or DeviceError if it
  /// does not fit them.
  Batch load(std::int64_t epoch, std::int64_t b, const Batch& into = {}) const;

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
  struct Place {
    std::int64_t epoch = -1, b = -1;
    bool operator==(const Place&) const = default;
  };
  struct Staged;
  struct Pipeline;
  const std::vector<std::int64_t>& order(std::int64_t epoch) const;
  void gather(Place place) const;
  Staged stage(Place place) const;
  Staged take(Place place) const;
  void look_ahead(Place place) const;

  const ImageSet* set_;
  LoaderOptions options_;
  std::unique_ptr<Pipeline> pipeline_;
  std::int64_t epoch_ = 0;
  mutable std::int64_t order_epoch_ = -1;
  mutable std::vector<std::int64_t> order_;
  Tensor mean_, stddev_;
};

/// A picture as decoded: u8 H,W,C; 1 channel is grey, 2 grey and alpha, 3 colour, 4 colour and alpha.
struct Picture {
  std::int64_t height = 0, width = 0, channels = 0;
  std::vector<std::uint8_t> pixels;
};
/// PNG, JPEG, uncompressed BMP, or binary PGM or PPM (16 bits are reduced to 8), as a viewer shows it: turned as its
/// EXIF orientation asks, inks (CMYK, YCCK) as colours, black where an index is beyond the palette. Throws DataError
/// naming the file and the reason: missing, empty, of another kind, truncated, corrupt, sides over 16,384 or more than
/// 2^27 pixels.
Picture read_picture(const std::string& file);
/// To `channels` (1 or 3) and size height x width: alpha laid over white, colour to grey by luma (ITU-R 601), resized
/// with a triangle filter that widens with the reduction, so that it does not alias.
Picture convert_picture(const Picture& picture, std::int64_t channels, std::int64_t height, std::int64_t width);
/// Normalised f32[1,C,H,W] of a converted picture.
Tensor to_tensor(const Picture& picture, std::span<const float> mean, std::span<const float> stddev,
                 Device device = kCpu);
std::vector<std::uint8_t> encode_png(const Picture& picture);

}  // namespace cuttle::data
