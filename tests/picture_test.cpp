#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <numeric>

#include "cuttle/data.hpp"
#include "cuttle/error.hpp"
#include "support/pictures.hpp"
#include "support/png_file.hpp"

using namespace cuttle;
using namespace cuttle::pictures;
using data::Picture;
using Bytes = FileBytes;

namespace {

Bytes text_bytes(const std::string& text) { return {text.begin(), text.end()}; }

/// A PNG whose header claims a size, with valid checksums and no pixels.
Bytes png_claiming(std::uint32_t width, std::uint32_t height) { return PngFile(width, height, 8, 6).end(); }

}  // namespace

TEST_CASE("lossless pictures give Pillow's pixels") {
  const Bytes grey = expected("grey"), rgb = expected("rgb"), alpha = expected("alpha");
  check_size(golden("grey.png"), kHeight, kWidth, 1);
  check_size(golden("rgb.png"), kHeight, kWidth, 3);
  CHECK(golden("grey.png").pixels == grey);
  CHECK(golden("grey.pgm").pixels == grey);
  CHECK(golden("grey16.png").pixels == grey);
  CHECK(golden("rgb.png").pixels == rgb);
  CHECK(golden("rgb.ppm").pixels == rgb);
  CHECK(golden("rgb.bmp").pixels == rgb);
  CHECK(golden("palette.png").pixels == expected("palette"));

  const Picture with_alpha = golden("rgba.png"), grey_alpha = golden("grey_alpha.png");
  check_size(with_alpha, kHeight, kWidth, 4);
  check_size(grey_alpha, kHeight, kWidth, 2);
  for (std::size_t i = 0; i < grey.size(); ++i) {
    CHECK(grey_alpha.pixels[2 * i] == grey[i]);
    CHECK(grey_alpha.pixels[2 * i + 1] == alpha[i]);
    CHECK(with_alpha.pixels[4 * i + 2] == rgb[3 * i + 2]);
    CHECK(with_alpha.pixels[4 * i + 3] == alpha[i]);
  }
}

TEST_CASE("JPEG pictures agree with Pillow within the freedom of decoders") {
  for (const std::string name : {"baseline.jpg", "progressive.jpg", "grey.jpg"}) {
    CAPTURE(name);
    const Picture picture = golden(name);
    check_size(picture, kHeight, kWidth, name == "grey.jpg" ? 1 : 3);
    check_close(picture.pixels, expected(name), 4);
  }
}

TEST_CASE("pictures that end early are errors at every length, in every format") {
  for (const std::string name : {"rgb.png", "baseline.jpg", "progressive.jpg", "rgb.bmp", "grey.pgm"}) {
    const Bytes whole = golden_bytes(name);
    for (std::size_t length = 0; length < whole.size(); ++length) {
      CAPTURE(name);
      CAPTURE(length);
      cause({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)});
    }
  }
}

TEST_CASE("a PNG with a changed byte is an error") {
  const Bytes whole = golden_bytes("rgb.png");
  for (std::size_t at = 0; at < whole.size(); ++at) {
    CAPTURE(at);
    Bytes changed = whole;
    changed[at] ^= 0x04;
    cause(changed);
  }
}

TEST_CASE("a PNG with changed bytes and checksums that match is decoded or refused, never a crash") {
  for (const std::string name : {"palette.png", "palette_index_beyond.png", "rgba.png", "grey16.png"}) {
    const Bytes whole = golden_bytes(name);
    for (std::size_t at = 8; at < whole.size(); ++at) {
      Bytes changed = whole;
      changed[at] ^= static_cast<std::uint8_t>(1 + at % 255);
      check_survives(resealed(changed));
    }
  }
}

TEST_CASE("a JPEG or BMP with changed bytes is decoded or refused, never a crash") {
  for (const std::string name : {"baseline.jpg", "progressive.jpg", "rgb.bmp"}) {
    const Bytes whole = golden_bytes(name);
    for (std::size_t at = 0; at < whole.size(); ++at) {
      Bytes changed = whole;
      changed[at] ^= static_cast<std::uint8_t>(1 + at % 255);
      check_survives(changed);
    }
  }
}

TEST_CASE("a JPEG whose Huffman table would overrun the decoder is refused") {
  Bytes bytes = golden_bytes("baseline.jpg");
  constexpr std::array<std::uint8_t, 2> kTableMark{0xff, 0xc4};
  const auto table = std::search(bytes.begin(), bytes.end(), kTableMark.begin(), kTableMark.end());
  REQUIRE(table != bytes.end());
  std::fill_n(table + 5, 16, std::uint8_t{64});
  contains(cause(bytes), "has 1024 values");
}

TEST_CASE("files that are no pictures are named") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH_AS(data::read_picture(folder.file("no.png")), doctest::Contains("no.png' is not there"), DataError);
  CHECK_THROWS_WITH_AS(data::read_picture(folder.path()), doctest::Contains("is not a file"), DataError);
  write_bytes(folder.file("empty.png"), {});
  CHECK_THROWS_WITH_AS(data::read_picture(folder.file("empty.png")), doctest::Contains("is empty"), DataError);
  contains(cause(text_bytes("hello")), "not a picture");
  contains(cause(text_bytes("GIF89a......")), "not a picture");
}

TEST_CASE("absurd sizes are refused before anything is decoded") {
  contains(cause(png_claiming(20000, 20000)), "20000x20000");
  contains(cause(png_claiming(16384, 16384)), "16384x16384");
  contains(cause(png_claiming(0x7fffffff, 0x7fffffff)), "picture");
  contains(cause(png_claiming(20000, 1)), "20000x1 pixels");
  contains(cause(png_claiming(0, 5)), "picture");
  contains(cause(text_bytes("P5 20000 20000 255\n")), "20000x20000");
  contains(cause(text_bytes("P5 0 5 255\n")), "0x5");
  Bytes bmp = golden_bytes("rgb.bmp");
  bmp[20] = 0x7f;  // the width becomes more than eight million
  contains(cause(bmp), "pixels (width x height)");
}

TEST_CASE("PGM: comments, every maxval, 16 bits, and what is not read") {
  CHECK(from_bytes(text_bytes("P5 # a comment\n#another\n2\t1\n255\nAB")).pixels == Bytes{'A', 'B'});
  CHECK(from_bytes({'P', '5', ' ', '3', ' ', '1', ' ', '1', '5', '\n', 0, 7, 15}).pixels == Bytes{0, 119, 255});
  const Bytes wide{'P', '5', ' ', '2', ' ', '1', ' ', '4', '0', '9', '5', '\n', 0x0f, 0xff, 0x08, 0x00};
  CHECK(from_bytes(wide).pixels == Bytes{255, 128});
  CHECK(from_bytes({'P', '6', ' ', '1', ' ', '1', ' ', '2', '5', '5', '\n', 1, 2, 3}).pixels == Bytes{1, 2, 3});
  contains(cause(text_bytes("P2 1 1 255\n7")), "only binary PGM (P5)");
  contains(cause(text_bytes("P5 1 1 0\n7")), "maxval of 0");
  contains(cause(text_bytes("P5 1 1 65536\n77")), "maxval of 65536");
  contains(cause(text_bytes("P5 x 1 255\n7")), "broken PGM");
  contains(cause(text_bytes("P5 1 1 15\n\x10")), "sample of 16");
  contains(cause(text_bytes("P5 99999999999999999999999 1 255\n7")), "broken PGM");
  contains(cause(text_bytes("P5 -3 1 255\n7")), "broken PGM");
}

TEST_CASE("a PNG that was encoded decodes to the same picture") {
  for (std::int64_t channels = 1; channels <= 4; ++channels) {
    Picture picture{5, 7, channels, Bytes(static_cast<std::size_t>(35 * channels))};
    std::iota(picture.pixels.begin(), picture.pixels.end(), std::uint8_t{11});
    const Picture decoded = from_bytes(data::encode_png(picture));
    CHECK(decoded.height == 5);
    CHECK(decoded.width == 7);
    CHECK(decoded.channels == channels);
    CHECK(decoded.pixels == picture.pixels);
  }
  CHECK_THROWS_AS(data::encode_png({5, 7, 1, Bytes(34)}), ShapeError);
  CHECK_THROWS_AS(data::encode_png({0, 0, 0, {}}), ShapeError);
}

TEST_CASE("colour becomes grey by luma, grey becomes colour by repetition") {
  check_close(data::convert_picture(golden("rgb.png"), 1, kHeight, kWidth).pixels, expected("luma"), 1);
  const Bytes grey = expected("grey"), colour = data::convert_picture(golden("grey.png"), 3, kHeight, kWidth).pixels;
  REQUIRE(colour.size() == 3 * grey.size());
  for (std::size_t i = 0; i < colour.size(); ++i) CHECK(colour[i] == grey[i / 3]);
}

TEST_CASE("transparent parts are white") {
  const Picture picture{1, 3, 4, {10, 20, 30, 255, 10, 20, 30, 0, 0, 0, 0, 51}};
  CHECK(data::convert_picture(picture, 3, 1, 3).pixels == Bytes{10, 20, 30, 255, 255, 255, 204, 204, 204});
  CHECK(data::convert_picture({1, 2, 2, {0, 0, 100, 255}}, 1, 1, 2).pixels == Bytes{255, 100});
}

TEST_CASE("resizing filters as Pillow's bilinear does, inside and at the edges") {
  for (const std::string name : {"grey", "rgb"}) {
    const Picture picture = golden(name + ".png");
    const std::int64_t channels = picture.channels;
    for (const Size2 size : {Size2(12, 10), Size2(7, 9), Size2(48, 30)}) {
      const std::int64_t height = size.h, width = size.w;
      CAPTURE(name);
      CAPTURE(height);
      const Picture resized = data::convert_picture(picture, channels, height, width);
      const Bytes reference = expected(fmt::format("{}.{}x{}", name, height, width));
      REQUIRE(resized.pixels.size() == reference.size());
      // Pillow drops what lies outside the picture, stb repeats the edge: only border pixels may differ by more.
      for (std::int64_t y = 0, i = 0; y < height; ++y) {
        for (std::int64_t x = 0; x < width * channels; ++x, ++i) {
          const bool border = y == 0 || y == height - 1 || x < channels || x >= (width - 1) * channels;
          const int difference = std::abs(resized.pixels[i] - reference[i]);
          CHECK(difference <= (border ? 12 : 1));
        }
      }
    }
  }
}

TEST_CASE("reducing a fine pattern does not alias") {
  Picture stripes{64, 64, 1, {}};
  for (int i = 0; i < 64 * 64; ++i) stripes.pixels.push_back(i % 2 == 0 ? 0 : 255);
  const Picture small = data::convert_picture(stripes, 1, 8, 8);
  for (std::size_t i = 0; i < 64; ++i) {
    if (i % 8 != 0 && i % 8 != 7) CHECK(std::abs(small.pixels[i] - 127) <= 4);
  }
}

TEST_CASE("conversion refuses what it cannot make") {
  const Picture picture{2, 2, 1, Bytes(4)};
  CHECK_THROWS_AS(data::convert_picture(picture, 2, 2, 2), UsageError);
  CHECK_THROWS_AS(data::convert_picture(picture, 1, 0, 2), UsageError);
  CHECK_THROWS_AS(data::convert_picture({2, 2, 1, Bytes(3)}, 1, 2, 2), ShapeError);
}

TEST_CASE("a picture becomes a normalised tensor in logical N,C,H,W order") {
  const Picture picture{1, 2, 3, {0, 51, 102, 153, 204, 255}};
  const std::vector<float> mean{0, 0.5f, 1}, stddev{1, 0.5f, 2};
  const Tensor tensor = data::to_tensor(picture, mean, stddev);
  CHECK(tensor.shape() == Shape{1, 3, 1, 2});
  const std::vector<double> values = tensor.to_vector<double>(), want{0, 0.6, -0.6, 0.6, -0.3, 0};
  for (std::size_t i = 0; i < 6; ++i) CHECK(values[i] == doctest::Approx(want[i]).epsilon(1e-6));
  CHECK_THROWS_AS(data::to_tensor(picture, std::vector<float>{0}, stddev), ShapeError);
}
