#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "cuttle/data.hpp"

namespace cuttle::data {

/// No picture has more: a tiny file may claim any size, so this is asked before anything is decoded.
inline constexpr std::int64_t kMaxSide = 16384, kMaxPixels = std::int64_t{1} << 27;
/// Throws DataError naming the file if the sides are not in [1, kMaxSide] or their product exceeds kMaxPixels.
void check_picture_size(const std::string& file, std::int64_t height, std::int64_t width);

/// Throws ShapeError unless there are 1 to 4 channels and a byte for each.
void check_picture(const char* what, const Picture& picture);

enum class PictureKind : std::uint8_t { unknown, png, jpeg, bmp, pnm };
PictureKind kind_of(std::span<const std::uint8_t> bytes);

/// What stb_image does not look at. Throws DataError naming the file if the bytes are not all there (PNG, JPEG, BMP)
/// or a checksum does not match (PNG).
void check_intact(const std::string& file, PictureKind kind, std::span<const std::uint8_t> bytes);

/// What read_picture() makes of the bytes of a file.
Picture decode_picture(const std::string& file, std::span<const std::uint8_t> bytes);

/// Binary PGM or PPM (P5, P6) of any maxval. stb_image neither scales by it nor notices missing bytes.
Picture decode_pnm(const std::string& file, std::span<const std::uint8_t> bytes);

}  // namespace cuttle::data
