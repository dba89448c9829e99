#pragma once
#include <zlib.h>

#include <cstdint>
#include <string>
#include <vector>

namespace cuttle {

/// Writes PNG files chunk by chunk, also such as no library would write.
class PngFile {
 public:
  PngFile(std::uint32_t width, std::uint32_t height, std::uint8_t depth, std::uint8_t colour_type) {
    std::vector<std::uint8_t> header;
    append(header, width);
    append(header, height);
    header.insert(header.end(), {depth, colour_type, 0, 0, 0});
    chunk("IHDR", header);
  }

  PngFile& chunk(const std::string& name, const std::vector<std::uint8_t>& data) {
    append(bytes_, static_cast<std::uint32_t>(data.size()));
    const std::size_t begin = bytes_.size();
    bytes_.insert(bytes_.end(), name.begin(), name.end());
    bytes_.insert(bytes_.end(), data.begin(), data.end());
    append(bytes_, static_cast<std::uint32_t>(crc32_z(0, bytes_.data() + begin, bytes_.size() - begin)));
    return *this;
  }

  /// Rows with their filter bytes.
  PngFile& pixels(const std::vector<std::uint8_t>& rows) {
    uLongf size = compressBound(static_cast<uLong>(rows.size()));
    std::vector<std::uint8_t> packed(size);
    compress(packed.data(), &size, rows.data(), static_cast<uLong>(rows.size()));
    packed.resize(size);
    return chunk("IDAT", packed);
  }

  std::vector<std::uint8_t> end() { return chunk("IEND", {}).bytes_; }

 private:
  static void append(std::vector<std::uint8_t>& bytes, std::uint32_t value) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<std::uint8_t>(value >> shift));
  }

  std::vector<std::uint8_t> bytes_{0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
};

/// The PNG with checksums that match whatever its chunks hold by now.
inline std::vector<std::uint8_t> resealed(std::vector<std::uint8_t> png) {
  for (std::size_t at = 8; at + 12 <= png.size();) {
    std::size_t length = 0;
    for (std::size_t i = 0; i < 4; ++i) length = length << 8 | png[at + i];
    if (length > png.size() - at - 12) break;
    const auto crc = static_cast<std::uint32_t>(crc32_z(0, png.data() + at + 4, length + 4));
    for (std::size_t i = 0; i < 4; ++i) png[at + 8 + length + i] = static_cast<std::uint8_t>(crc >> (24 - 8 * i));
    at += length + 12;
  }
  return png;
}

}  // namespace cuttle
