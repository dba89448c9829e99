#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <utility>

#include "cuttle/error.hpp"
#include "data/picture_file.hpp"

namespace cuttle::data {

namespace {

constexpr std::size_t kFileHeader = 14, kOldHeader = 12, kOs2Header = 64, kInfoHeader = 40;
constexpr std::uint32_t kUncompressed = 0, kBitFields = 3;

struct Header {
  std::size_t size;    // without the file header; says which fields there are
  std::size_t offset;  // of the pixels in the file
  std::int64_t width, height;
  bool from_above = false;
  int bits;  // a pixel
  std::uint32_t compression = kUncompressed;
  std::size_t colours = 0;               // in the palette; 0 means as many as the bits can name
  std::array<std::uint32_t, 4> masks{};  // of red, green, blue and alpha, where a pixel is a word of 16 or 32 bits
};

void read_masks(const std::string& file, Bytes bytes, Header& header) {
  constexpr std::size_t kMasks = kFileHeader + kInfoHeader;  // in longer headers and behind this one alike
  constexpr std::size_t kWithAlpha = 56;
  if (header.compression == kUncompressed) {
    header.masks = header.bits == 16 ? std::array<std::uint32_t, 4>{0x7c00, 0x3e0, 0x1f, 0}
                                     : std::array<std::uint32_t, 4>{0xff0000, 0xff00, 0xff, 0};
    return;
  }
  const std::size_t count = header.size >= kWithAlpha ? 4 : 3;
  if (bytes.size() < kMasks + 4 * count) throw_truncated(file, bytes.size());
  for (std::size_t i = 0; i < count; ++i) header.masks[i] = little_endian(bytes, kMasks + 4 * i, 4);
  if (std::count(header.masks.begin(), header.masks.begin() + 3, 0U) > 0) throw_corrupt(file, "a colour has no bits");
}

void check_readable(const std::string& file, const Header& header) {
  constexpr std::array<int, 7> kPlain{1, 2, 4, 8, 16, 24, 32};
  const bool words = header.bits == 16 || header.bits == 32;
  if (header.compression == kBitFields && header.size != kOs2Header && words) return;
  const bool plain = std::find(kPlain.begin(), kPlain.end(), header.bits) != kPlain.end();
  if (header.compression == kUncompressed && plain) return;
  throw DataError(fmt::format("'{}' is a BMP of {} bits a pixel and compression {}; only uncompressed ones are read",
                              file, header.bits, header.compression),
                  "convert it, for example to PNG");
}

Header read_header(const std::string& file, Bytes bytes) {
  constexpr std::array<std::size_t, 7> kSizes{kOldHeader, kInfoHeader, 52, 56, kOs2Header, 108, 124};
  if (bytes.size() < kFileHeader + kOldHeader) throw_truncated(file, bytes.size());
  Header header{};
  header.offset = little_endian(bytes, 10, 4);
  header.size = little_endian(bytes, kFileHeader, 4);
  if (std::find(kSizes.begin(), kSizes.end(), header.size) == kSizes.end()) {
    throw_corrupt(file, fmt::format("no BMP has a header of {} bytes", header.size));
  }
  if (bytes.size() < kFileHeader + header.size) throw_truncated(file, bytes.size());
  if (header.size == kOldHeader) {
    header.width = little_endian(bytes, 18, 2);
    header.height = little_endian(bytes, 20, 2);
    header.bits = static_cast<int>(little_endian(bytes, 24, 2));
  } else {
    const std::int64_t height = static_cast<std::int32_t>(little_endian(bytes, 22, 4));
    header.width = static_cast<std::int32_t>(little_endian(bytes, 18, 4));
    header.height = std::abs(height);
    header.from_above = height < 0;
    header.bits = static_cast<int>(little_endian(bytes, 28, 2));
    header.compression = little_endian(bytes, 30, 4);
    header.colours = little_endian(bytes, 46, 4);
  }
  check_picture_size(file, header.height, header.width);
  check_readable(file, header);
  if (header.bits == 16 || header.bits == 32) read_masks(file, bytes, header);
  if (header.offset < kFileHeader + header.size) throw_corrupt(file, "its pixels would begin in its header");
  return header;
}

using Palette = std::vector<std::array<std::uint8_t, 3>>;

/// As many colours as the bits can name: those that the file lacks are black.
Palette read_palette(const std::string& file, Bytes bytes, const Header& header) {
  const std::size_t begin = kFileHeader + header.size, entry = header.size == kOldHeader ? 3 : 4;
  Palette palette(std::size_t{1} << header.bits);
  const std::size_t said = header.colours == 0 ? palette.size() : header.colours;
  const std::size_t count = std::min({said, palette.size(), (header.offset - begin) / entry});
  if (count == 0) throw_corrupt(file, "it has no palette");
  for (std::size_t i = 0; i < count; ++i) {
    const Bytes bgr = bytes.subspan(begin + i * entry, 3);
    palette[i] = {bgr[2], bgr[1], bgr[0]};
  }
  return palette;
}

void decode_indices(Bytes row, int bits, const Palette& palette, std::span<std::uint8_t> out) {
  const std::size_t a_byte = 8 / static_cast<std::size_t>(bits);
  for (std::size_t x = 0; x < out.size() / 3; ++x) {
    const auto shift = 8 - static_cast<std::size_t>(bits) * (x % a_byte + 1);
    const std::size_t index = (row[x / a_byte] >> shift) & (palette.size() - 1);
    std::copy(palette[index].begin(), palette[index].end(), &out[3 * x]);
  }
}

void decode_bgr(Bytes row, std::span<std::uint8_t> out) {
  for (std::size_t i = 0; i < out.size(); i += 3) std::reverse_copy(&row[i], &row[i] + 3, &out[i]);
}

/// The bits of a colour, scaled to 0..255.
std::uint8_t colour(std::uint32_t word, std::uint32_t mask) {
  const int shift = std::countr_zero(mask);
  const std::uint64_t value = (word & mask) >> shift, largest = mask >> shift;
  return static_cast<std::uint8_t>((value * 255 + largest / 2) / largest);
}

void decode_words(Bytes row, const Header& header, std::size_t channels, std::span<std::uint8_t> out) {
  const int word_bytes = header.bits / 8;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const std::size_t at = i / channels * static_cast<std::size_t>(word_bytes);
    out[i] = colour(little_endian(row, at, word_bytes), header.masks[i % channels]);
  }
}

/// Some programs write an alpha of 0 everywhere and mean that there is none.
void drop_empty_alpha(Picture& picture) {
  for (std::size_t i = 3; i < picture.pixels.size(); i += 4) {
    if (picture.pixels[i] != 0) return;
  }
  for (std::size_t i = 3; i < picture.pixels.size(); i += 4) picture.pixels[i] = 255;
}

}  // namespace

/// Rows of four-byte words, the lowest first unless the height is negative.
Picture decode_bmp(const std::string& file, Bytes bytes) {
  const Header header = read_header(file, bytes);
  const auto height = static_cast<std::size_t>(header.height), width = static_cast<std::size_t>(header.width);
  const std::size_t row_bytes = (width * static_cast<std::size_t>(header.bits) + 31) / 32 * 4;
  if (bytes.size() < header.offset + row_bytes * height) throw_truncated(file, bytes.size());
  const Palette palette = header.bits <= 8 ? read_palette(file, bytes, header) : Palette{};
  const std::size_t channels = header.masks[3] != 0 ? 4 : 3;
  Picture picture{header.height, header.width, static_cast<std::int64_t>(channels), {}};
  picture.pixels.resize(height * width * channels);
  for (std::size_t y = 0; y < height; ++y) {
    const Bytes row = bytes.subspan(header.offset + y * row_bytes, row_bytes);
    const std::size_t line = header.from_above ? y : height - 1 - y;
    const std::span<std::uint8_t> out(&picture.pixels[line * width * channels], width * channels);
    if (header.bits <= 8) {
      decode_indices(row, header.bits, palette, out);
    } else if (header.bits == 24) {
      decode_bgr(row, out);
    } else {
      decode_words(row, header, channels, out);
    }
  }
  if (channels == 4) drop_empty_alpha(picture);
  return picture;
}

}  // namespace cuttle::data
