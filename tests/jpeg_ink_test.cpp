#include <doctest/doctest.h>

#include <algorithm>
#include <array>

#include "cuttle/data.hpp"
#include "support/pictures.hpp"

using namespace cuttle;
using namespace cuttle::pictures;
using data::Picture;

namespace {

constexpr std::size_t kTransform = 17;  // where the Adobe segment of Pillow's files says how colours are stored

FileBytes without_adobe_segment(FileBytes jpeg) {
  REQUIRE(jpeg[3] == 0xee);
  jpeg.erase(jpeg.begin() + 2, jpeg.begin() + 2 + 16);
  return jpeg;
}

FileBytes with_transform(FileBytes jpeg, std::uint8_t transform) {
  REQUIRE(jpeg[3] == 0xee);
  jpeg[kTransform] = transform;
  return jpeg;
}

FileBytes with_jfif(FileBytes jpeg) {
  constexpr std::array<std::uint8_t, 18> kJfif{0xff, 0xe0, 0, 16, 'J', 'F', 'I', 'F', 0, 1, 1, 0, 0, 1, 0, 1, 0, 0};
  jpeg.insert(jpeg.begin() + 2, kJfif.begin(), kJfif.end());
  return jpeg;
}

/// Names the three components R, G and B, in the frame and in the only scan.
FileBytes named_rgb(FileBytes jpeg) {
  const auto rename = [&](std::uint8_t mark, std::size_t first, std::size_t step) {
    const std::array<std::uint8_t, 2> wanted{0xff, mark};
    auto at = std::search(jpeg.begin(), jpeg.end(), wanted.begin(), wanted.end());
    REQUIRE(at != jpeg.end());
    at += static_cast<std::ptrdiff_t>(first);
    for (const char name : {'R', 'G', 'B'}) {
      *at = static_cast<std::uint8_t>(name);
      at += static_cast<std::ptrdiff_t>(step);
    }
  };
  rename(0xc0, 10, 3);
  rename(0xda, 5, 2);
  return jpeg;
}

void check_colours(const FileBytes& jpeg, const FileBytes& want) {
  const Picture picture = from_bytes(jpeg);
  check_size(picture, kHeight, kWidth, 3);
  check_close(picture.pixels, want, 4);
}

}  // namespace

TEST_CASE("a JPEG of four components is CMYK, with and without an Adobe segment") {
  const FileBytes cmyk = golden_bytes("cmyk.jpg"), want = expected("cmyk.jpg");
  check_colours(cmyk, want);
  check_colours(without_adobe_segment(cmyk), want);
  check_colours(with_jfif(without_adobe_segment(cmyk)), want);
}

TEST_CASE("a JPEG of four components is YCCK where its Adobe segment says anything but 0") {
  const FileBytes ycck = golden_bytes("ycck.jpg"), want = expected("ycck.jpg");
  for (const std::uint8_t transform : {1, 2, 3, 255}) check_colours(with_transform(ycck, transform), want);
}

TEST_CASE("ink colours without an Adobe segment, in numbers") {
  const Picture picture = golden("cmyk_without_adobe_marker.jpg");
  check_size(picture, 64, 64, 3);
  check_close(picture.pixels, expected("cmyk_without_adobe_marker.jpg"), 4);
  const auto pixel = [&](std::size_t y, std::size_t x) {
    const auto* begin = &picture.pixels[(y * 64 + x) * 3];
    return FileBytes(begin, begin + 3);
  };
  check_close(pixel(10, 10), {255, 0, 0}, 2);      // inks 0, 255, 255, 0
  check_close(pixel(50, 50), {127, 127, 127}, 2);  // 0, 0, 0, 128
}

TEST_CASE("three components that are named R, G and B are taken so, unless a segment says otherwise") {
  const FileBytes jpeg = golden_bytes("baseline.jpg");  // it has a JFIF segment of 18 bytes behind its first two
  REQUIRE(jpeg[3] == 0xe0);
  FileBytes bare = jpeg;
  bare.erase(bare.begin() + 2, bare.begin() + 2 + 18);
  check_colours(bare, expected("baseline.jpg"));
  CHECK(from_bytes(named_rgb(bare)).pixels != from_bytes(bare).pixels);
  contains(cause(named_rgb(jpeg)), "its JFIF segment says");
  contains(cause(with_jfif(named_rgb(bare))), "its JFIF segment says");
  FileBytes adobe = named_rgb(bare);
  const FileBytes cmyk = golden_bytes("cmyk.jpg");
  adobe.insert(adobe.begin() + 2, cmyk.begin() + 2, cmyk.begin() + 2 + 16);
  CHECK(from_bytes(adobe).pixels == from_bytes(named_rgb(bare)).pixels);
  contains(cause(with_transform(adobe, 1)), "its Adobe segment says");
}

TEST_CASE("ink pictures that are cut off or changed are refused or read, never a crash") {
  for (const std::string name : {"cmyk.jpg", "ycck.jpg", "cmyk_without_adobe_marker.jpg"}) {
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
