#include <doctest/doctest.h>

#include "cuttle/data.hpp"
#include "support/bmp_file.hpp"
#include "support/pictures.hpp"

using namespace cuttle;
using namespace cuttle::pictures;
using data::Picture;

TEST_CASE("BMP pictures of every depth give Pillow's pixels") {
  for (const std::string name : {"os2_1.bmp", "os2_8.bmp", "palette_1.bmp", "palette_4.bmp", "palette_8.bmp",
                                 "rgbx_32.bmp", "rgba_32.bmp", "rgb_555.bmp", "rgb_565.bmp"}) {
    CAPTURE(name);
    const Picture picture = golden(name);
    check_size(picture, kHeight, kWidth, name == "rgba_32.bmp" ? 4 : 3);
    check_close(picture.pixels, expected(name), name.starts_with("rgb_5") ? 1 : 0);  // Pillow rounds 5 bits down
  }
}

TEST_CASE("a BMP stored from above is the one stored from below, in every depth") {
  const Picture given = golden("top_down.bmp");
  check_size(given, 2, 1, 3);
  CHECK(given.pixels == FileBytes{3, 2, 1, 6, 5, 4});

  const FileBytes colours{10, 20, 30, 40, 50, 60};
  const std::vector<FileBytes> rows{
      {0x80, 1, 2, 3, 4, 5, 6, 7}, {0x00, 0xff, 9, 8, 7, 6, 5, 4}, {1, 2, 3, 4, 1, 2, 3, 4}};
  for (const int bits : {1, 2, 4, 8, 16, 24, 32}) {
    for (const std::uint32_t header : {40U, 52U, 56U, 64U, 108U, 124U}) {
      CAPTURE(bits);
      CAPTURE(header);
      BmpFile bmp{.header = header, .width = 64 / bits, .height = 3, .bits = bits};
      if (bits <= 8) bmp = bmp.with_palette(colours);
      const Picture below = from_bytes(bmp.bytes({rows[2], rows[1], rows[0]}));
      bmp.height = -3;
      const Picture above = from_bytes(bmp.bytes(rows));
      check_size(above, 3, 64 / bits, 3);
      CHECK(above.pixels == below.pixels);
    }
  }
}

TEST_CASE("BMP: colours lie where the masks say, wherever the header keeps them") {
  const std::vector<std::uint32_t> masks{0xff, 0xff00, 0xff0000, 0xff000000};
  const FileBytes pixel{1, 2, 3, 4};
  for (const std::uint32_t header : {40U, 52U, 56U, 108U, 124U}) {
    CAPTURE(header);
    BmpFile bmp{.header = header, .bits = 32, .compression = 3, .masks = masks};
    if (header < 56) bmp.masks.pop_back();
    CHECK(from_bytes(bmp.bytes({pixel})).pixels == (header < 56 ? FileBytes{1, 2, 3} : FileBytes{1, 2, 3, 4}));
  }
  BmpFile bmp{.header = 56, .width = 2, .bits = 16, .compression = 3, .masks = {0xf000, 0xf00, 0xf0, 0xf}};
  CHECK(from_bytes(bmp.bytes({{0x0f, 0xf0, 0x80, 0x04}})).pixels == FileBytes{255, 0, 0, 255, 0, 68, 136, 0});
  bmp.masks = {0xffc00000, 0x3ff000, 0xffc, 0};
  bmp.width = 1;
  bmp.bits = 32;
  CHECK(from_bytes(bmp.bytes({{0xfc, 0x0f, 0x20, 0x00}})).pixels == FileBytes{0, 128, 255});
}

TEST_CASE("BMP: an alpha of nothing but 0 means that there is none") {
  const BmpFile bmp{
      .header = 56, .width = 2, .bits = 32, .compression = 3, .masks = {0xff, 0xff00, 0xff0000, 0xff000000}};
  CHECK(from_bytes(bmp.bytes({{1, 2, 3, 0, 4, 5, 6, 0}})).pixels == FileBytes{1, 2, 3, 255, 4, 5, 6, 255});
  CHECK(from_bytes(bmp.bytes({{1, 2, 3, 0, 4, 5, 6, 1}})).pixels == FileBytes{1, 2, 3, 0, 4, 5, 6, 1});
}

TEST_CASE("BMP: what is not read is named") {
  const FileBytes row{0, 0, 0, 0};
  const auto refused = [&](const BmpFile& bmp, const std::string& why) { contains(cause(bmp.bytes({row})), why); };
  refused({.bits = 8, .compression = 1, .palette = row}, "8 bits a pixel and compression 1; only uncompressed");
  refused({.bits = 4, .compression = 2, .palette = row}, "4 bits a pixel and compression 2");
  refused({.bits = 0, .compression = 4}, "compression 4");  // a JPEG within
  refused({.bits = 24, .compression = 3, .masks = {1, 2, 4}}, "24 bits a pixel and compression 3");
  refused({.header = 64, .bits = 32, .compression = 3}, "compression 3");  // Huffman in OS/2
  for (const int bits : {0, 3, 5, 48, 65535}) refused({.bits = bits}, "bits a pixel");
  refused({.bits = 32, .compression = 3, .masks = {0xff, 0, 0xff}}, "a colour has no bits");
  refused({.header = 41}, "no BMP has a header of 41 bytes");
  refused({.bits = 8}, "it has no palette");
  refused({.bits = 24, .offset_said = 53}, "would begin in its header");
  refused({.bits = 24, .offset_said = 0}, "would begin in its header");
  refused({.bits = 24, .offset_said = 0xffffffff}, "truncated");
  refused({.width = -1, .bits = 24}, "pixels (width x height)");
  refused({.height = INT32_MIN, .bits = 24}, "pixels (width x height)");
  refused({.height = 0, .bits = 24}, "pixels (width x height)");
}

TEST_CASE("BMP files that are cut off or changed are refused or read, never a crash") {
  for (const std::string name : {"os2_1.bmp", "os2_8.bmp", "palette_1.bmp", "palette_4.bmp", "palette_8.bmp",
                                 "rgba_32.bmp", "rgb_565.bmp", "top_down.bmp"}) {
    const FileBytes whole = golden_bytes(name);
    for (std::size_t at = 0; at < whole.size(); ++at) {
      CAPTURE(name);
      CAPTURE(at);
      cause({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(at)});
      FileBytes changed = whole;
      changed[at] ^= static_cast<std::uint8_t>(1 + at % 255);
      check_survives(changed);
    }
  }
}
