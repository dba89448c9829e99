#include "data/exif.hpp"

#include <doctest/doctest.h>

#include "cuttle/data.hpp"
#include "support/pictures.hpp"
#include "support/png_file.hpp"

using namespace cuttle;
using namespace cuttle::pictures;
using data::Picture;

namespace {

FileBytes number(std::uint32_t value, int count, bool little) {
  FileBytes bytes;
  for (int i = 0; i < count; ++i) {
    bytes.push_back(static_cast<std::uint8_t>(value >> 8 * (little ? i : count - 1 - i)));
  }
  return bytes;
}

void append(FileBytes& bytes, const FileBytes& more) { bytes.insert(bytes.end(), more.begin(), more.end()); }

struct Entry {
  std::uint32_t tag, type, count, value;
};

/// A TIFF block with a directory of such entries.
FileBytes tiff(const std::vector<Entry>& entries, bool little) {
  constexpr std::uint32_t kShort = 3;
  FileBytes bytes = little ? FileBytes{'I', 'I'} : FileBytes{'M', 'M'};
  append(bytes, number(42, 2, little));
  append(bytes, number(8, 4, little));
  append(bytes, number(static_cast<std::uint32_t>(entries.size()), 2, little));
  for (const Entry& entry : entries) {
    append(bytes, number(entry.tag, 2, little));
    append(bytes, number(entry.type, 2, little));
    append(bytes, number(entry.count, 4, little));
    append(bytes, number(entry.value, entry.type == kShort ? 2 : 4, little));
    if (entry.type == kShort) append(bytes, {0, 0});
  }
  append(bytes, number(0, 4, little));
  return bytes;
}

FileBytes oriented(std::uint32_t orientation, bool little) {
  return tiff({{0x010f, 2, 200, 0xffffff00}, {0x0112, 3, 1, orientation}, {0x8769, 4, 1, 0x7fffffff}}, little);
}

/// The JPEG with an EXIF segment behind its first mark.
FileBytes jpeg_with(const FileBytes& exif, FileBytes jpeg = golden_bytes("baseline.jpg")) {
  FileBytes segment{0xff, 0xe1};
  append(segment, number(static_cast<std::uint32_t>(exif.size() + 8), 2, false));
  append(segment, {'E', 'x', 'i', 'f', 0, 0});
  append(segment, exif);
  jpeg.insert(jpeg.begin() + 2, segment.begin(), segment.end());
  return jpeg;
}

FileBytes png_with(const FileBytes& exif) {
  FileBytes rows;
  const FileBytes rgb = expected("rgb");
  for (auto row = rgb.begin(); row != rgb.end(); row += 3 * kWidth) {
    rows.push_back(0);
    rows.insert(rows.end(), row, row + 3 * kWidth);
  }
  return PngFile(kWidth, kHeight, 8, 2).pixels(rows).chunk("eXIf", exif).end();
}

}  // namespace

TEST_CASE("pictures are turned as their EXIF orientation asks, in JPEG and PNG, in both byte orders") {
  const FileBytes rgb = expected("rgb");
  for (std::uint32_t orientation = 1; orientation <= 8; ++orientation) {
    const FileBytes want = orientation == 1 ? rgb : expected("orientation" + std::to_string(orientation));
    const bool lies = orientation >= 5;
    for (const bool little : {false, true}) {
      CAPTURE(orientation);
      CAPTURE(little);
      const FileBytes exif = oriented(orientation, little);
      const Picture png = from_bytes(png_with(exif)), jpeg = from_bytes(jpeg_with(exif));
      check_size(png, lies ? kWidth : kHeight, lies ? kHeight : kWidth, 3);
      check_size(jpeg, png.height, png.width, 3);
      CHECK(png.pixels == want);
      check_close(jpeg.pixels, want, 20);  // what JPEG loses
    }
  }
}

TEST_CASE("a photograph taken with the camera held upright") {
  const Picture picture = golden("exif_orientation_6.jpg");
  check_size(picture, 64, 32, 3);
  check_close(picture.pixels, expected("exif_orientation_6.jpg"), 4);
}

TEST_CASE("grey pictures and pictures with alpha are turned whole") {
  CHECK(data::upright({1, 3, 1, {1, 2, 3}}, 8).pixels == FileBytes{3, 2, 1});
  CHECK(data::upright({1, 2, 2, {1, 2, 3, 4}}, 6).pixels == FileBytes{1, 2, 3, 4});
  CHECK(data::upright({1, 2, 4, {1, 2, 3, 4, 5, 6, 7, 8}}, 2).pixels == FileBytes{5, 6, 7, 8, 1, 2, 3, 4});
}

TEST_CASE("an orientation that is not valid leaves the picture as it is") {
  const FileBytes good = oriented(6, true);
  CHECK(data::exif_orientation(good) == 6);
  for (const std::uint32_t value : {0, 9, 0x0600, 65535}) CHECK(data::exif_orientation(oriented(value, true)) == 1);
  CHECK(data::exif_orientation(tiff({{0x0112, 4, 1, 6}}, true)) == 1);           // not a short
  CHECK(data::exif_orientation(tiff({{0x0112, 3, 2, 6}}, true)) == 1);           // two of them
  CHECK(data::exif_orientation(tiff({{0x0112, 3, 0xffffffff, 6}}, true)) == 1);  // four billion of them
  CHECK(data::exif_orientation(tiff({}, true)) == 1);
  for (std::size_t length = 0; length < 8 + 2 + 2 * 12; ++length) {
    CHECK(data::exif_orientation(data::Bytes(good).first(length)) == 1);
  }
  for (const std::uint32_t directory : {0U, 1U, 40U, 49U, 50U, 0x7fffffffU, 0xfffffffeU, 0xffffffffU}) {
    FileBytes bytes = good;
    const FileBytes offset = number(directory, 4, true);
    std::copy(offset.begin(), offset.end(), bytes.begin() + 4);
    CHECK(data::exif_orientation(bytes) == 1);
  }
  FileBytes many = good;
  many[8] = many[9] = 0xff;  // entries
  CHECK(data::exif_orientation(many) == 6);
  many[10 + 12] = 0;  // the orientation's tag: now none of the 65,535 is there
  CHECK(data::exif_orientation(many) == 1);
}

TEST_CASE("only the first EXIF segment, before the picture's data, is read") {
  const FileBytes plain = golden_bytes("baseline.jpg");
  CHECK(from_bytes(jpeg_with(oriented(3, true), jpeg_with(oriented(6, true)))).height == kHeight);
  CHECK(from_bytes(jpeg_with(oriented(6, true), jpeg_with(oriented(3, true)))).height == kWidth);
  CHECK(from_bytes(jpeg_with({})).pixels == from_bytes(plain).pixels);
}

TEST_CASE("hostile EXIF never crashes the reading") {
  for (const FileBytes& whole : {oriented(6, true), oriented(6, false)}) {
    for (std::size_t at = 0; at < whole.size(); ++at) {
      for (const std::uint8_t value : {0x00, 0x7f, 0x80, 0xff}) {
        FileBytes changed = whole;
        changed[at] = value;
        check_survives(jpeg_with(changed));
      }
      check_survives(jpeg_with({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(at)}));
    }
  }
}
