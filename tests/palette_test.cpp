#include <doctest/doctest.h>

#include <algorithm>

#include "cuttle/data.hpp"
#include "support/bmp_file.hpp"
#include "support/pictures.hpp"
#include "support/png_file.hpp"

using namespace cuttle;
using namespace cuttle::pictures;
using data::Picture;

namespace {

/// One row of the indices 0, 1, ... as many as `bits` can tell apart, packed.
FileBytes all_indices(int bits) {
  FileBytes row;
  const int count = 1 << bits, a_byte = 8 / bits;
  for (int first = 0; first < count; first += a_byte) {
    int packed = 0;
    for (int i = 0; i < a_byte; ++i) packed = packed << bits | (first + i) % count;
    row.push_back(static_cast<std::uint8_t>(packed));
  }
  return row;
}

/// Colours (200 + i, i, 100).
FileBytes colours(int count) {
  FileBytes palette;
  for (int i = 0; i < count; ++i) {
    palette.insert(palette.end(), {static_cast<std::uint8_t>(200 + i), static_cast<std::uint8_t>(i), 100});
  }
  return palette;
}

/// Dirt where the decoder's stack is going to be.
void scribble_on_the_stack(std::uint8_t value) {
  volatile std::uint8_t dirt[1 << 16];
  for (volatile std::uint8_t& byte : dirt) byte = value;
}

/// Twice with other dirt around; colours beyond the palette must be black both times.
void check_read(const FileBytes& file, int bits, int palette_size, std::int64_t channels = 3) {
  CAPTURE(bits);
  CAPTURE(palette_size);
  for (const std::uint8_t dirt : {0x5a, 0xc3}) {
    scribble_on_the_stack(dirt);
    const Picture picture = from_bytes(file);
    check_size(picture, 1, 1 << bits, channels);
    FileBytes want;
    for (int i = 0; i < 1 << bits; ++i) {
      const FileBytes colour = i < palette_size ? colours(i + 1) : FileBytes(3, 0);
      want.insert(want.end(), colour.end() - 3, colour.end());
      if (channels == 4) want.push_back(i == 0 ? 7 : 255);
    }
    CHECK(picture.pixels == want);
  }
}

constexpr std::uint8_t kPalette = 3;  // a PNG's colour type

}  // namespace

TEST_CASE("PNG: an index beyond the palette is black, in every depth, with and without transparency") {
  for (const int bits : {1, 2, 4, 8}) {
    for (const int count : {1, 2, 3, 15, 16, 200, 255, 256}) {
      if (count > 1 << bits) continue;
      FileBytes row = all_indices(bits);
      row.insert(row.begin(), std::uint8_t{0});
      const auto width = std::uint32_t{1} << bits;
      const auto depth = static_cast<std::uint8_t>(bits);
      check_read(PngFile(width, 1, depth, kPalette).chunk("PLTE", colours(count)).pixels(row).end(), bits, count);
      check_read(PngFile(width, 1, depth, kPalette).chunk("PLTE", colours(count)).chunk("tRNS", {7}).pixels(row).end(),
                 bits, count, 4);
    }
  }
}

TEST_CASE("PNG: palettes that cannot be are errors") {
  const FileBytes row{0, 0};
  contains(cause(PngFile(1, 1, 8, kPalette).pixels(row).end()), "picture");
  contains(cause(PngFile(1, 1, 8, kPalette).chunk("PLTE", {}).pixels(row).end()), "picture");
  contains(cause(PngFile(1, 1, 8, kPalette).chunk("PLTE", {1, 2, 3, 4}).pixels(row).end()), "picture");
  contains(cause(PngFile(1, 1, 8, kPalette).chunk("PLTE", FileBytes(771)).pixels(row).end()), "picture");
  contains(cause(PngFile(1, 1, 8, kPalette).chunk("PLTE", colours(2)).chunk("PLTE", colours(1)).pixels(row).end()),
           "more than one palette");
}

TEST_CASE("PNG: the palette that a colour picture suggests changes nothing") {
  const FileBytes row{0, 10, 20, 30};
  CHECK(from_bytes(PngFile(1, 1, 8, 2).chunk("PLTE", colours(2)).pixels(row).end()).pixels == FileBytes{10, 20, 30});
}

TEST_CASE("BMP: an index beyond the palette is black, in every depth, in old and new headers") {
  for (const int bits : {1, 2, 4, 8}) {
    for (const int count : {1, 2, 3, 15, 16, 200, 255, 256}) {
      if (count > 1 << bits) continue;
      for (const std::uint32_t header : {12U, 40U, 64U, 108U, 124U}) {
        for (const bool from_above : {false, true}) {
          if (header == 12 && from_above) continue;
          const BmpFile bmp{.header = header, .width = 1 << bits, .height = from_above ? -1 : 1, .bits = bits};
          check_read(bmp.with_palette(colours(count)).bytes({all_indices(bits)}), bits, count);
        }
      }
    }
  }
}

TEST_CASE("BMP: what lies between the palette and the pixels is no colour") {
  BmpFile bmp{.width = 4, .height = 1, .bits = 8};
  bmp = bmp.with_palette(colours(2));
  bmp.gap = {1, 2, 3, 4, 5, 6, 7, 8};
  CHECK(from_bytes(bmp.bytes({{0, 1, 2, 3}})).pixels == FileBytes{200, 0, 100, 201, 1, 100, 0, 0, 0, 0, 0, 0});
  bmp.colours_said = 0xffffffff;  // then only the file's end bounds it
  CHECK(from_bytes(bmp.bytes({{0, 1, 0, 1}})).pixels == FileBytes{200, 0, 100, 201, 1, 100, 200, 0, 100, 201, 1, 100});
}

TEST_CASE("the same given pictures, as Pillow reads them") {
  for (const std::string name : {"palette_index_beyond.png", "palette_index_beyond.bmp"}) {
    CHECK(golden(name).pixels == expected(name));
    CHECK(golden(name).pixels == FileBytes{255, 0, 0, 0, 255, 0, 0, 0, 0, 0, 0, 0});
  }
}
