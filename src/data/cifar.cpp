#include "data/cifar.hpp"

#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <optional>

#include "core/text.hpp"
#include "cuttle/error.hpp"
#include "data/byte_source.hpp"
#include "data/statistics.hpp"

// The format: records of one label and 3072 pixels, the red plane first, row by row (cs.toronto.edu/~kriz/cifar.html).
namespace cuttle::data {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSide = 32, kPlane = kSide * kSide, kChannels = 3;
constexpr std::size_t kRecord = 1 + kPlane * kChannels;
constexpr const char* kAgain = "download cifar-10-binary.tar.gz again and unpack it";

std::vector<std::string> names_of(Split split) {
  if (split == Split::test) return {"test_batch.bin"};
  return {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"};
}

std::optional<std::string> find(const fs::path& folder, const std::string& name) {
  for (const char* suffix : {"", ".gz"}) {
    std::error_code unreachable_is_absent;
    if (fs::path file = folder / (name + suffix); fs::exists(file, unreachable_is_absent)) return file.string();
  }
  return std::nullopt;
}

std::vector<std::string> class_names(const fs::path& folder) {
  const fs::path file = folder / "batches.meta.txt";
  std::vector<std::string> names;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    if (!is_utf8(line)) throw DataError(fmt::format("'{}' is not UTF-8", file.string()), kAgain);
    if (!line.empty()) names.push_back(line);
  }
  if (names.empty()) {
    return {"airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"};
  }
  return names;
}

void append_record(ImageSet& set, const std::array<std::uint8_t, kRecord>& record, const std::string& file) {
  const std::int64_t label = record[0];
  if (label >= static_cast<std::int64_t>(set.classes.size())) {
    throw DataError(fmt::format("'{}' gives image {} of the set the label {}, but there are {} classes", file,
                                set.size(), label, set.classes.size()),
                    kAgain);
  }
  set.labels.push_back(label);
  for (std::size_t i = 0; i < kPlane; ++i) {
    for (std::size_t c = 0; c < kChannels; ++c) set.pixels.push_back(record[1 + c * kPlane + i]);
  }
}

void append_file(ImageSet& set, const std::string& file) {
  ByteSource source(file);
  std::array<std::uint8_t, kRecord> record{};
  const std::int64_t before = set.size();
  while (const std::size_t got = source.read(record)) {
    if (got < kRecord) {
      throw DataError(fmt::format("'{}' is truncated: its record {} has {} bytes, {} are wanted", file,
                                  set.size() - before, got, kRecord),
                      kAgain);
    }
    append_record(set, record, file);
  }
  if (source.cut_off()) throw DataError(fmt::format("'{}' breaks off within its gzip data", file), kAgain);
}

ImageSet read_split(const fs::path& folder, Split split) {
  ImageSet set;
  set.name = fs::weakly_canonical(folder).filename().string();
  set.channels = kChannels;
  set.height = set.width = kSide;
  set.classes = class_names(folder);
  for (const std::string& name : names_of(split)) {
    const auto file = find(folder, name);
    if (!file) {
      throw DataError(fmt::format("there is no '{0}' or '{0}.gz' in '{1}'", name, folder.string()), kAgain);
    }
    append_file(set, *file);
  }
  return set;
}

}  // namespace

bool is_cifar10(const std::string& directory) {
  return find(directory, names_of(Split::train)[0]) || find(directory, names_of(Split::test)[0]);
}

ImageSet cifar10(const std::string& directory, Split split) {
  ImageSet set = read_split(directory, split);
  if (split == Split::test && find(directory, names_of(Split::train)[0])) {
    set_statistics(set, sum_pixels(read_split(directory, Split::train).pixels, kChannels));
  } else {
    set_statistics(set, sum_pixels(set.pixels, kChannels));
  }
  return set;
}

}  // namespace cuttle::data
