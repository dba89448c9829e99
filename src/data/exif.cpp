#include "data/exif.hpp"

#include <array>
#include <cstring>
#include <utility>

namespace cuttle::data {

/// TIFF: byte order, 42, where the directory lies; there a count and entries of tag, type, count, value.
int exif_orientation(Bytes tiff) {
  constexpr std::array<std::uint8_t, 4> kLittle{'I', 'I', 42, 0}, kBig{'M', 'M', 0, 42};
  constexpr std::size_t kHeader = 8, kEntry = 12;
  constexpr std::uint32_t kOrientation = 0x0112, kShort = 3;
  const bool little = begins_with(tiff, kLittle);
  if (tiff.size() < kHeader || (!little && !begins_with(tiff, kBig))) return 1;
  const auto number = [&](std::size_t at, int count) {
    return little ? little_endian(tiff, at, count) : big_endian(tiff, at, count);
  };
  std::size_t at = number(4, 4);
  if (at + 2 > tiff.size()) return 1;
  const std::uint32_t entries = number(at, 2);
  at += 2;
  for (std::uint32_t i = 0; i < entries && at + kEntry <= tiff.size(); ++i, at += kEntry) {
    if (number(at, 2) != kOrientation || number(at + 2, 2) != kShort || number(at + 4, 4) != 1) continue;
    const std::uint32_t value = number(at + 8, 2);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

Picture upright(Picture picture, int orientation) {
  if (orientation == 1) return picture;
  const bool transposed = orientation >= 5;
  const bool from_below = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
  const bool from_right = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
  const std::int64_t height = picture.height, width = picture.width, channels = picture.channels;
  Picture turned{transposed ? width : height, transposed ? height : width, channels, {}};
  turned.pixels.resize(picture.pixels.size());
  std::uint8_t* out = turned.pixels.data();
  for (std::int64_t y = 0; y < turned.height; ++y) {
    for (std::int64_t x = 0; x < turned.width; ++x, out += channels) {
      const auto [down, right] = transposed ? std::pair(x, y) : std::pair(y, x);
      const std::int64_t row = from_below ? height - 1 - down : down;
      const std::int64_t column = from_right ? width - 1 - right : right;
      std::memcpy(out, &picture.pixels[static_cast<std::size_t>((row * width + column) * channels)],
                  static_cast<std::size_t>(channels));
    }
  }
  return turned;
}

}  // namespace cuttle::data
