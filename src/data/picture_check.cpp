#include <fmt/format.h>

#include <array>
#include <utility>

#include "cuttle/error.hpp"
#include "data/picture_file.hpp"

namespace cuttle::data {

namespace {

constexpr const char* kReplace = "replace or remove the file";

}  // namespace

void throw_truncated(const std::string& file, std::size_t there) {
  throw DataError(fmt::format("'{}' is truncated: it ends within the picture, after {} bytes", file, there), kReplace);
}

void throw_corrupt(const std::string& file, const std::string& how) {
  throw DataError(fmt::format("'{}' is corrupt: {}", file, how), kReplace);
}

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
  constexpr std::array<std::uint8_t, 8> kPngMagic{0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
  constexpr std::array<std::uint8_t, 3> kJpegMagic{0xff, 0xd8, 0xff};
  constexpr std::array<std::uint8_t, 2> kBmpMagic{'B', 'M'};
  if (begins_with(bytes, kPngMagic)) return PictureKind::png;
  if (begins_with(bytes, kJpegMagic)) return PictureKind::jpeg;
  if (begins_with(bytes, kBmpMagic)) return PictureKind::bmp;
  if (bytes.size() >= 2 && bytes[0] == 'P' && bytes[1] >= '1' && bytes[1] <= '7') return PictureKind::pnm;
  return PictureKind::unknown;
}

}  // namespace cuttle::data
