#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "cuttle/error.hpp"
#include "data/picture_file.hpp"

namespace cuttle::data {

namespace {

using Bytes = std::span<const std::uint8_t>;

constexpr std::array<std::uint8_t, 8> kPngMagic{0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

bool begins_with(Bytes bytes, Bytes magic) {
  return bytes.size() >= magic.size() && std::equal(magic.begin(), magic.end(), bytes.begin());
}

std::uint32_t big_endian(Bytes bytes, std::size_t at, int count) {
  std::uint32_t value = 0;
  for (int i = 0; i < count; ++i) value = value << 8 | bytes[at + static_cast<std::size_t>(i)];
  return value;
}

std::uint32_t little_endian(Bytes bytes, std::size_t at, int count) {
  std::uint32_t value = 0;
  for (int i = count - 1; i >= 0; --i) value = value << 8 | bytes[at + static_cast<std::size_t>(i)];
  return value;
}

[[noreturn]] void throw_truncated(const std::string& file, std::size_t there) {
  throw DataError(fmt::format("'{}' is truncated: it ends within the picture, after {} bytes", file, there),
                  "replace or remove the file");
}

/// Chunks are length, name, data, CRC of name and data; the first, IHDR, begins with width and height, the last is
/// IEND.
void check_png(const std::string& file, Bytes bytes) {
  constexpr std::size_t kWidthAt = 16, kHeightAt = 20;
  if (bytes.size() < kHeightAt + 4) throw_truncated(file, bytes.size());
  check_picture_size(file, big_endian(bytes, kHeightAt, 4), big_endian(bytes, kWidthAt, 4));
  std::size_t at = kPngMagic.size();
  while (true) {
    if (bytes.size() - at < 12) throw_truncated(file, bytes.size());
    const std::size_t length = big_endian(bytes, at, 4);
    if (bytes.size() - at - 12 < length) throw_truncated(file, bytes.size());
    const Bytes name_and_data = bytes.subspan(at + 4, length + 4);
    const std::uint32_t crc = big_endian(bytes, at + 8 + length, 4);
    if (crc32_z(0, name_and_data.data(), name_and_data.size()) != crc) {
      throw DataError(fmt::format("'{}' is corrupt: the checksum of the PNG chunk at byte {} does not match", file, at),
                      "replace or remove the file");
    }
    constexpr std::array<std::uint8_t, 4> kEnd{'I', 'E', 'N', 'D'};
    if (begins_with(name_and_data, kEnd)) return;
    at += length + 12;
  }
}

/// A DHT segment holds Huffman tables: class, 16 counts, as many values. The decoder overruns its own table for more
/// than 256 values and takes number 255 for a mark; no 8-bit JPEG needs more than 176.
void check_huffman_tables(const std::string& file, Bytes bytes, std::size_t at, std::size_t end) {
  while (at < end) {
    if (bytes.size() - at < 17) throw_truncated(file, bytes.size());
    const Bytes counts = bytes.subspan(at + 1, 16);
    const int values = std::accumulate(counts.begin(), counts.end(), 0);
    if (values > 255) {
      throw DataError(fmt::format("'{}' is corrupt: the Huffman table at byte {} has {} values", file, at, values),
                      "replace or remove the file");
    }
    at += 17 + static_cast<std::size_t>(values);
    if (at > bytes.size()) throw_truncated(file, bytes.size());
  }
}

/// Walks the segments to the end mark FF D9; a decoder fills what is missing before it with grey and says nothing. In
/// the scan data after an SOS segment (DA), FF is followed by 00, a restart mark, or the next segment's mark.
void check_jpeg(const std::string& file, Bytes bytes) {
  std::size_t at = 2;
  while (at + 1 < bytes.size()) {
    const std::uint8_t mark = bytes[at + 1];
    if (bytes[at] != 0xff || mark == 0xff) {
      ++at;
      continue;
    }
    const bool alone = mark == 0x00 || mark == 0x01 || (mark >= 0xd0 && mark <= 0xd7);
    if (mark == 0xd9) return;
    if (alone) {
      at += 2;
      continue;
    }
    if (at + 4 > bytes.size()) break;
    const std::size_t next = at + 2 + big_endian(bytes, at + 2, 2);
    if (mark == 0xc4) check_huffman_tables(file, bytes, at + 4, next);
    at = next;
  }
  throw_truncated(file, bytes.size());
}

/// Uncompressed rows of four-byte words from the offset in the header on; other kinds of BMP the decoder refuses.
void check_bmp(const std::string& file, Bytes bytes) {
  constexpr std::size_t kOldHeader = 12, kHeaders = 14 + 16;
  if (bytes.size() < kHeaders) throw_truncated(file, bytes.size());
  const bool old = little_endian(bytes, 14, 4) == kOldHeader;
  const auto width = static_cast<std::int64_t>(little_endian(bytes, 18, old ? 2 : 4));
  const auto signed_height = static_cast<std::int32_t>(little_endian(bytes, old ? 20 : 22, old ? 2 : 4));
  const std::int64_t height = std::abs(static_cast<std::int64_t>(signed_height));
  const std::int64_t bits = little_endian(bytes, old ? 24 : 28, 2);
  check_picture_size(file, height, width);
  const std::int64_t end = little_endian(bytes, 10, 4) + (width * bits + 31) / 32 * 4 * height;
  if (std::cmp_less(bytes.size(), end)) throw_truncated(file, bytes.size());
}

}  // namespace

void check_picture_size(const std::string& file, std::int64_t height, std::int64_t width) {
  if (height >= 1 && width >= 1 && height <= kMaxSide && width <= kMaxSide && height * width <= kMaxPixels) return;
  throw DataError(fmt::format("'{}' says it is {}x{} pixels (width x height); sides of 1 to {} and {} pixels are read",
                              file, width, height, kMaxSide, kMaxPixels),
                  "reduce the picture, or remove the file if it is corrupt");
}

void check_picture(const char* what, const Picture& picture) {
  const std::int64_t bytes = picture.height * picture.width * picture.channels;
  if (bytes > 0 && picture.channels <= 4 && std::cmp_equal(picture.pixels.size(), bytes)) return;
  throw ShapeError(fmt::format("{}: a picture of {}x{}x{} with {} bytes", what, picture.height, picture.width,
                               picture.channels, picture.pixels.size()));
}

PictureKind kind_of(Bytes bytes) {
  constexpr std::array<std::uint8_t, 3> kJpegMagic{0xff, 0xd8, 0xff};
  constexpr std::array<std::uint8_t, 2> kBmpMagic{'B', 'M'};
  if (begins_with(bytes, kPngMagic)) return PictureKind::png;
  if (begins_with(bytes, kJpegMagic)) return PictureKind::jpeg;
  if (begins_with(bytes, kBmpMagic)) return PictureKind::bmp;
  if (bytes.size() >= 2 && bytes[0] == 'P' && bytes[1] >= '1' && bytes[1] <= '7') return PictureKind::pnm;
  return PictureKind::unknown;
}

void check_intact(const std::string& file, PictureKind kind, Bytes bytes) {
  if (kind == PictureKind::png) check_png(file, bytes);
  if (kind == PictureKind::jpeg) check_jpeg(file, bytes);
  if (kind == PictureKind::bmp) check_bmp(file, bytes);
}

}  // namespace cuttle::data
