#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>

#include "core/text.hpp"
#include "cuttle/data.hpp"
#include "cuttle/error.hpp"
#include "data/byte_source.hpp"
#include "data/cifar.hpp"
#include "data/statistics.hpp"

// The IDX format (yann.lecun.com/exdb/mnist): two zero bytes, a type, a rank, big-endian u32 sizes, then the values.
namespace cuttle::data {

namespace {

namespace fs = std::filesystem;

constexpr int kImagesRank = 3, kLabelsRank = 1;
constexpr std::uint64_t kTrustedBytes = 64u << 20;  // reserved on the header's word alone; MNIST needs 45 MiB
constexpr std::uint64_t kPieceBytes = 1u << 20;
constexpr const char* kAgain = "download it again";

struct IdxFile {
  std::array<std::uint64_t, 3> sizes{};
  std::vector<std::uint8_t> values;
};

bool is_there(const fs::path& path) {
  std::error_code unreachable_is_absent;
  return fs::exists(path, unreachable_is_absent);
}

const char* type_name(std::uint8_t type) {
  switch (type) {
    case 0x08: return "u8";
    case 0x09: return "i8";
    case 0x0B: return "i16";
    case 0x0C: return "i32";
    case 0x0D: return "f32";
    case 0x0E: return "f64";
    default: return nullptr;
  }
}

[[noreturn]] void throw_truncated(const ByteSource& source, std::uint64_t there, std::uint64_t wanted) {
  throw DataError(fmt::format("'{}' is truncated: {} bytes{} are there, {} are wanted", source.file(), there,
                              source.gzipped() ? " of unpacked data" : "", wanted),
                  kAgain);
}

/// Checks the four magic bytes.
void read_magic(ByteSource& source, int rank) {
  std::array<std::uint8_t, 4> magic{};
  if (const std::size_t got = source.read(magic); got < magic.size()) throw_truncated(source, got, magic.size());
  if (magic[0] != 0 || magic[1] != 0 || type_name(magic[2]) == nullptr) {
    throw DataError(fmt::format("'{}' is not an IDX file: it begins with {:02x}, where IDX has 00 00 08 {:02x}",
                                source.file(), fmt::join(magic, " "), rank),
                    "see data/README.md for where to get the files");
  }
  if (magic[2] != 0x08) {
    throw DataError(fmt::format("'{}' holds values of type {}, where images and labels are u8", source.file(),
                                type_name(magic[2])));
  }
  if (magic[3] != rank) {
    throw DataError(fmt::format("'{}' is an IDX file of rank {}, where {} have rank {}", source.file(), magic[3],
                                rank == kImagesRank ? "images" : "labels", rank),
                    "are the images and the labels exchanged?");
  }
}

/// Bytes of the whole file as its sizes promise them; nullopt beyond 63 bits.
std::optional<std::uint64_t> promised_bytes(const IdxFile& idx, int rank) {
  std::int64_t product = 1;
  for (int i = 0; i < rank; ++i) {
    const auto size = static_cast<std::int64_t>(idx.sizes[static_cast<std::size_t>(i)]);
    if (__builtin_mul_overflow(product, size, &product)) return std::nullopt;
  }
  if (__builtin_add_overflow(product, std::int64_t{4 + 4 * rank}, &product)) return std::nullopt;
  return static_cast<std::uint64_t>(product);
}

/// Reads the sizes and refuses those that the file cannot hold, before anything of that size is allocated.
std::uint64_t read_sizes(ByteSource& source, int rank, IdxFile& idx) {
  std::array<std::uint8_t, 12> raw{};
  const auto bytes = static_cast<std::size_t>(4 * rank);
  if (const std::size_t got = source.read(std::span(raw).first(bytes)); got < bytes) {
    throw_truncated(source, 4 + got, 4 + bytes);
  }
  for (std::size_t i = 0; i < bytes / 4; ++i) {
    for (std::size_t b = 0; b < 4; ++b) idx.sizes[i] = idx.sizes[i] << 8 | raw[4 * i + b];
  }
  const std::string sizes = fmt::format("{}", fmt::join(idx.sizes.begin(), idx.sizes.begin() + rank, "x"));
  if (std::ranges::count(idx.sizes.begin(), idx.sizes.begin() + rank, 0u) > 0) {
    throw DataError(fmt::format("'{}' holds no {}: its sizes are {}", source.file(),
                                rank == kImagesRank ? "images" : "labels", sizes),
                    kAgain);
  }
  const auto wanted = promised_bytes(idx, rank);
  if (!wanted) throw DataError(fmt::format("'{}' claims the impossible sizes {}", source.file(), sizes), kAgain);
  if (*wanted > source.most_bytes()) {
    if (!source.gzipped()) throw_truncated(source, source.file_bytes(), *wanted);
    throw DataError(fmt::format("'{}' claims sizes {}, {} bytes, but {} bytes of gzip data unpack to at most {}",
                                source.file(), sizes, *wanted, source.file_bytes(), source.most_bytes()),
                    kAgain);
  }
  return *wanted;
}

/// Reads up to `wanted` bytes, growing with what really comes: a small gzip file may promise a thousand times its size.
void read_values(ByteSource& source, std::uint64_t wanted, std::vector<std::uint8_t>& values) {
  values.reserve(std::min(wanted, kTrustedBytes));
  while (values.size() < wanted) {
    const std::size_t before = values.size();
    const std::size_t piece = std::min<std::uint64_t>(wanted - before, kPieceBytes);
    values.resize(before + piece);
    const std::size_t got = source.read(std::span(values).subspan(before));
    if (got < piece) return values.resize(before + got);
  }
}

IdxFile read_idx(const std::string& file, int rank) {
  ByteSource source(file);
  IdxFile idx;
  read_magic(source, rank);
  const std::uint64_t wanted = read_sizes(source, rank, idx);
  const auto header = static_cast<std::uint64_t>(4 + 4 * rank);
  read_values(source, wanted - header, idx.values);
  if (idx.values.size() < wanted - header) throw_truncated(source, header + idx.values.size(), wanted);
  std::array<std::uint8_t, 1> more{};
  if (source.read(more) > 0) {
    throw DataError(fmt::format("'{}' has bytes behind the {} that its header promises", source.file(), wanted),
                    kAgain);
  }
  if (source.cut_off()) throw DataError(fmt::format("'{}' breaks off in the checksum of its gzip data", file), kAgain);
  return idx;
}

/// The names in classes.txt beside the files, one a line; "0" to "9" where there is none.
std::vector<std::string> class_names(const fs::path& folder) {
  std::vector<std::string> names;
  const fs::path file = folder / "classes.txt";
  if (!is_there(file)) {
    for (int digit = 0; digit < 10; ++digit) names.push_back(fmt::format("{}", digit));
    return names;
  }
  std::ifstream in(file);
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (!is_utf8(line)) {
      throw DataError(fmt::format("'{}' is not UTF-8 in line {}", file.string(), number), "save it as UTF-8");
    }
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!line.empty()) names.push_back(line);
  }
  if (names.empty()) throw DataError(fmt::format("'{}' names no class", file.string()), "write one name a line");
  return names;
}

void check_labels(const ImageSet& set, const std::string& images_file, const std::string& labels_file,
                  std::uint64_t images) {
  if (images != set.labels.size()) {
    throw DataError(fmt::format("'{}' holds {} images but '{}' holds {} labels", images_file, images, labels_file,
                                set.labels.size()),
                    "take both files from the same set and split");
  }
  const auto classes = static_cast<std::int64_t>(set.classes.size());
  const auto bad = std::ranges::find_if(set.labels, [&](std::int64_t label) { return label >= classes; });
  if (bad == set.labels.end()) return;
  throw DataError(fmt::format("'{}' gives image {} the label {}, but there are {} classes", labels_file,
                              bad - set.labels.begin(), *bad, classes),
                  "for a set of more classes put classes.txt beside the files, one name a line");
}

/// Both files, without name and statistics.
ImageSet read_pair(const std::string& images_file, const std::string& labels_file) {
  IdxFile images = read_idx(images_file, kImagesRank);
  const IdxFile labels = read_idx(labels_file, kLabelsRank);
  ImageSet set;
  set.height = static_cast<std::int64_t>(images.sizes[1]);
  set.width = static_cast<std::int64_t>(images.sizes[2]);
  set.pixels = std::move(images.values);
  set.labels.assign(labels.values.begin(), labels.values.end());
  set.classes = class_names(fs::path(labels_file).parent_path());
  check_labels(set, images_file, labels_file, images.sizes[0]);
  return set;
}

std::array<std::string, 2> names_of(Split split) {
  const std::string prefix = split == Split::train ? "train" : "t10k";
  return {prefix + "-images-idx3-ubyte", prefix + "-labels-idx1-ubyte"};
}

/// `name` in the folder, unpacked or as .gz.
std::optional<std::string> find(const fs::path& folder, const std::string& name) {
  for (const char* suffix : {"", ".gz"}) {
    if (fs::path file = folder / (name + suffix); is_there(file)) return file.string();
  }
  return std::nullopt;
}

std::string find_or_throw(const fs::path& folder, const std::string& name) {
  if (auto file = find(folder, name)) return *file;
  throw DataError(fmt::format("there is no '{0}' or '{0}.gz' in '{1}'", name, folder.string()),
                  "see data/README.md for where to get the files");
}

/// MNIST is recognised by what it holds: the sum of all its pixels.
bool is_mnist(const PixelSums& sums, Split split) {
  return split == Split::train ? sums.count == 60000u * 784 && sums.sum[0] == 1567298545u
                               : sums.count == 10000u * 784 && sums.sum[0] == 264923200u;
}

}  // namespace

ImageSet idx(const std::string& images_file, const std::string& labels_file) {
  ImageSet set = read_pair(images_file, labels_file);
  set.name = fs::path(images_file).stem().string();
  set_statistics(set, sum_pixels(set.pixels, set.channels));
  return set;
}

ImageSet mnist(const std::string& directory, Split split) {
  const fs::path folder(directory);
  const auto [images, labels] = names_of(split);
  ImageSet set = read_pair(find_or_throw(folder, images), find_or_throw(folder, labels));
  set.name = fs::weakly_canonical(folder).filename().string();

  const PixelSums sums = sum_pixels(set.pixels, set.channels);
  if (is_mnist(sums, split)) {
    set.name = "mnist";
    set.mean = {0.1307f};
    set.stddev = {0.3081f};
    return set;
  }
  const auto train_images = split == Split::test ? find(folder, names_of(Split::train)[0]) : std::nullopt;
  set_statistics(set, train_images ? sum_pixels(read_idx(*train_images, kImagesRank).values, 1) : sums);
  return set;
}

ImageSet open(const std::string& path, Split split) {
  if (!is_there(path)) throw DataError(fmt::format("there is no '{}'", path), "give the folder of a dataset");
  if (!fs::is_directory(path)) {
    throw DataError(fmt::format("'{}' is a file, not the folder of a dataset", path), "give the folder it lies in");
  }
  if (is_cifar10(path)) return cifar10(path, split);
  const auto names = names_of(split);
  if (!find(path, names[0]) && !find(path, names[1])) {
    throw DataError(fmt::format("'{0}' is no dataset: it has neither {1}[.gz] nor {2}[.gz] (MNIST's file names) nor "
                                "data_batch_1.bin (CIFAR-10's)",
                                path, names[0], names[1]),
                    "see data/README.md for the datasets there are");
  }
  return mnist(path, split);
}

}  // namespace cuttle::data
