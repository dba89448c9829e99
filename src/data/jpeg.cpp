#include <fmt/format.h>
#include <array>
#include <numeric>
#include <optional>

#include "cuttle/error.hpp"
#include "data/exif.hpp"
#include "data/picture_file.hpp"

namespace cuttle::data {

namespace {

/// What the segments before the first scan say.
struct Header {
  int components = 0;
  bool named_rgb = false;  // the components
  bool jfif = false;
  std::optional<std::size_t> adobe_transform_at;
  Bytes exif;
};

/// A DHT segment holds Huffman tables: class, 16 counts, as many values. The decoder overruns its own table for more
/// than 256 values and takes number 255 for a mark; no 8-bit JPEG needs more than 176.
void check_huffman_tables(const std::string& file, Bytes bytes, std::size_t at, std::size_t end) {
  while (at < end) {
    if (bytes.size() - at < 17) throw_truncated(file, bytes.size());
    const Bytes counts = bytes.subspan(at + 1, 16);
    const int values = std::accumulate(counts.begin(), counts.end(), 0);
    if (values > 255) throw_corrupt(file, fmt::format("the Huffman table at byte {} has {} values", at, values));
    at += 17 + static_cast<std::size_t>(values);
    if (at > bytes.size()) throw_truncated(file, bytes.size());
  }
}

/// `data` is what the segment holds behind its length, at byte `at` of the file.
void note_segment(Header& header, std::uint8_t mark, Bytes data, std::size_t at) {
  constexpr std::array<std::uint8_t, 5> kJfif{'J', 'F', 'I', 'F', 0};
  constexpr std::array<std::uint8_t, 6> kExif{'E', 'x', 'i', 'f', 0, 0}, kAdobe{'A', 'd', 'o', 'b', 'e', 0};
  constexpr std::size_t kAdobeTransform = 11, kComponents = 6;  // where the one stands, the others begin
  if (mark == 0xe0 && begins_with(data, kJfif)) header.jfif = true;
  if (mark == 0xe1 && begins_with(data, kExif) && header.exif.empty()) header.exif = data.subspan(kExif.size());
  if (mark == 0xee && begins_with(data, kAdobe) && data.size() > kAdobeTransform) {
    header.adobe_transform_at = at + kAdobeTransform;
  }
  if (mark >= 0xc0 && mark <= 0xc2 && header.components == 0 && data.size() >= kComponents) {
    header.components = data[kComponents - 1];
    header.named_rgb = header.components == 3 && data.size() == kComponents + 9 && data[kComponents] == 'R' &&
                       data[kComponents + 3] == 'G' && data[kComponents + 6] == 'B';
  }
}

/// Walks the segments to the end mark FF D9; a decoder fills what is missing before it with grey and says nothing. In
/// the scan data after an SOS segment (DA), FF is followed by 00, a restart mark, or the next segment's mark.
Header walk(const std::string& file, Bytes bytes) {
  Header header;
  bool scanning = false;
  std::size_t at = 2;
  while (at + 1 < bytes.size()) {
    const std::uint8_t mark = bytes[at + 1];
    if (bytes[at] != 0xff || mark == 0xff) {
      ++at;
      continue;
    }
    const bool alone = mark == 0x00 || mark == 0x01 || (mark >= 0xd0 && mark <= 0xd7);
    if (mark == 0xd9) return header;
    if (alone) {
      at += 2;
      continue;
    }
    if (at + 4 > bytes.size()) break;
    const std::size_t length = big_endian(bytes, at + 2, 2);
    const std::size_t next = at + 2 + length;
    if (next > bytes.size()) break;
    if (mark == 0xc4) check_huffman_tables(file, bytes, at + 4, next);
    scanning = scanning || mark == 0xda;
    if (!scanning && length >= 2) note_segment(header, mark, bytes.subspan(at + 4, length - 2), at + 4);
    at = next;
  }
  throw_truncated(file, bytes.size());
}

/// Four components are CMYK, or YCCK where an Adobe segment says anything but 0 (libjpeg's rule), both inverted as
/// Adobe writes them and every viewer expects. stb_image needs an Adobe segment that says 0 or 2, or it takes them for
/// YCbCr. Gives back the bytes with such a segment, or none where they have it.
std::vector<std::uint8_t> with_ink_marker(Bytes bytes, const Header& header) {
  constexpr std::uint8_t kCmyk = 0, kYcck = 2;
  constexpr std::array<std::uint8_t, 16> kMarker{0xff, 0xee, 0, 14, 'A', 'd', 'o', 'b', 'e', 0, 100, 0, 0, 0, 0, kCmyk};
  std::vector<std::uint8_t> marked;
  if (!header.adobe_transform_at) {
    marked.assign(bytes.begin(), bytes.end());
    marked.insert(marked.begin() + 2, kMarker.begin(), kMarker.end());
  } else if (bytes[*header.adobe_transform_at] != kCmyk && bytes[*header.adobe_transform_at] != kYcck) {
    marked.assign(bytes.begin(), bytes.end());
    marked[*header.adobe_transform_at] = kYcck;
  }
  return marked;
}

/// stb_image goes by the components' names first, libjpeg by the segments.
void refuse_contradiction(const std::string& file, Bytes bytes, const Header& header) {
  const bool adobe_says_other = header.adobe_transform_at && bytes[*header.adobe_transform_at] != 0;
  if (!header.named_rgb || (!header.jfif && !adobe_says_other)) return;
  throw DataError(fmt::format("'{}' contradicts itself: its components are named R, G and B, and its {} segment says "
                              "that they are YCbCr",
                              file, header.jfif ? "JFIF" : "Adobe"),
                  "convert it, for example to PNG");
}

}  // namespace

Picture decode_jpeg(const std::string& file, Bytes bytes) {
  const Header header = walk(file, bytes);
  refuse_contradiction(file, bytes, header);
  std::vector<std::uint8_t> marked;
  if (header.components == 4) marked = with_ink_marker(bytes, header);
  Picture picture = decode_with_stb(file, marked.empty() ? bytes : Bytes(marked));
  return upright(std::move(picture), exif_orientation(header.exif));
}

}  // namespace cuttle::data
