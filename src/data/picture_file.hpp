#pragma once
#include <cstdint>
#include <string>

#include "cuttle/data.hpp"
#include "data/bytes.hpp"

namespace cuttle::data {

/// No picture has more: a tiny file may claim any size, so this is asked before anything is decoded.
inline constexpr std::int64_t kMaxSide = 16384, kMaxPixels = std::int64_t{1} << 27;
/// Throws DataError naming the file if the sides are not in [1, kMaxSide] or their product exceeds kMaxPixels.
void check_picture_size(const std::string& file, std::int64_t height, std::int64_t width);

/// Throws ShapeError unless there are 1 to 4 channels and a byte for each.
void check_picture(const char* what, const Picture& picture);

[[noreturn]] void throw_truncated(const std::string& file, std::size_t there);
[[noreturn]] void throw_corrupt(const std::string& file, const std::string& how);

enum class PictureKind : std::uint8_t { unknown, png, jpeg, bmp, pnm };
PictureKind kind_of(Bytes bytes);

/// What read_picture() makes of the bytes of a file.
Picture decode_picture(const std::string& file, Bytes bytes);

/// A PNG or JPEG as stb_image reads it. It looks at no checksum, fills what is missing, knows no EXIF, takes the
/// colours beyond a palette from anywhere: use the functions below.
Picture decode_with_stb(const std::string& file, Bytes bytes);
/// Refuses what is not there in full or does not match its checksum; colours beyond the palette are black.
Picture decode_png(const std::string& file, Bytes bytes);
/// Refuses what is not there in full. CMYK and YCCK become RGB as libjpeg and viewers take them.
Picture decode_jpeg(const std::string& file, Bytes bytes);
/// Any uncompressed BMP, old (OS/2) or new, stored from below or from above; colours beyond the palette are black.
Picture decode_bmp(const std::string& file, Bytes bytes);
/// Binary PGM or PPM (P5, P6) of any maxval. stb_image neither scales by it nor notices missing bytes.
Picture decode_pnm(const std::string& file, Bytes bytes);

}  // namespace cuttle::data
