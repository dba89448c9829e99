#include <fmt/format.h>
#include <zlib.h>

#include <array>
#include <optional>
#include <string_view>

#include "cuttle/error.hpp"
#include "data/exif.hpp"
#include "data/picture_file.hpp"

namespace cuttle::data {

namespace {

constexpr std::size_t kSignature = 8, kHeaderData = 16, kChunkFrame = 12;  // a chunk's length, name and CRC

struct Chunk {
  std::size_t at;
  std::string_view name;
  Bytes data;
};

struct Chunks {
  std::optional<Chunk> palette;
  Bytes exif;
};

/// Chunks are length, name, data, CRC of name and data; the last is IEND.
Chunk chunk_at(const std::string& file, Bytes bytes, std::size_t at) {
  if (bytes.size() - at < kChunkFrame) throw_truncated(file, bytes.size());
  const std::size_t length = big_endian(bytes, at, 4);
  if (bytes.size() - at - kChunkFrame < length) throw_truncated(file, bytes.size());
  const Bytes name_and_data = bytes.subspan(at + 4, length + 4);
  if (crc32_z(0, name_and_data.data(), name_and_data.size()) != big_endian(bytes, at + 8 + length, 4)) {
    throw_corrupt(file, fmt::format("the checksum of the PNG chunk at byte {} does not match", at));
  }
  return {at, {reinterpret_cast<const char*>(name_and_data.data()), 4}, name_and_data.subspan(4)};
}

Chunks walk(const std::string& file, Bytes bytes) {
  Chunks chunks;
  for (std::size_t at = kSignature;;) {
    const Chunk chunk = chunk_at(file, bytes, at);
    if (chunk.name == "IEND") return chunks;
    if (chunk.name == "eXIf" && chunks.exif.empty()) chunks.exif = chunk.data;
    if (chunk.name == "PLTE") {
      if (chunks.palette) throw_corrupt(file, "it has more than one palette");
      chunks.palette = chunk;
    }
    at += chunk.data.size() + kChunkFrame;
  }
}

/// stb_image takes colours beyond the palette from memory that nobody wrote. They become black, as in libpng. Gives
/// back the bytes with a palette of full length, or none where it is full or the decoder refuses it anyway.
std::vector<std::uint8_t> with_full_palette(Bytes bytes, const Chunk& palette) {
  constexpr std::size_t kFull = 3 * 256;
  if (palette.data.empty() || palette.data.size() % 3 != 0 || palette.data.size() >= kFull) return {};
  std::vector<std::uint8_t> filled(bytes.begin(), bytes.end());
  const auto end_of_palette = filled.begin() + static_cast<std::ptrdiff_t>(palette.at + 8 + palette.data.size());
  filled.insert(end_of_palette, kFull - palette.data.size(), std::uint8_t{0});
  filled[palette.at + 2] = kFull >> 8;
  filled[palette.at + 3] = kFull & 0xff;
  return filled;  // with a checksum that does not match, which stb_image does not look at
}

}  // namespace

Picture decode_png(const std::string& file, Bytes bytes) {
  if (bytes.size() < kHeaderData + 8) throw_truncated(file, bytes.size());
  check_picture_size(file, big_endian(bytes, kHeaderData + 4, 4), big_endian(bytes, kHeaderData, 4));
  const Chunks chunks = walk(file, bytes);
  std::vector<std::uint8_t> filled;
  if (chunks.palette) filled = with_full_palette(bytes, *chunks.palette);
  Picture picture = decode_with_stb(file, filled.empty() ? bytes : Bytes(filled));
  return upright(std::move(picture), exif_orientation(chunks.exif));
}

}  // namespace cuttle::data
