#include "cli/picture_art.hpp"

#include <fmt/format.h>

namespace cuttle::cli {
namespace {

/// The terminal's palette has 24 greys from 232 (nearly black) to 255 (nearly white).
int palette_grey(int value) { return 232 + value * 23 / 255; }

std::string in_colours(int upper, int lower) {
  return fmt::format("\x1b[38;5;{};48;5;{}m▀", palette_grey(upper), palette_grey(lower));
}

std::string in_two_tones(int upper, int lower) {
  const bool up = upper >= 128, down = lower >= 128;
  return up && down ? "█" : up ? "▀" : down ? "▄" : " ";
}

}  // namespace

std::string draw(const data::Picture& picture, bool colours) {
  const data::Picture grey = data::convert_picture(picture, 1, picture.height, picture.width);
  const auto pixel = [&](std::int64_t y, std::int64_t x) -> int {
    return y < grey.height ? grey.pixels[static_cast<std::size_t>(y * grey.width + x)] : 0;
  };
  std::string text;
  for (std::int64_t y = 0; y < grey.height; y += 2) {
    for (std::int64_t x = 0; x < grey.width; ++x) {
      text += colours ? in_colours(pixel(y, x), pixel(y + 1, x)) : in_two_tones(pixel(y, x), pixel(y + 1, x));
    }
    text += colours ? "\x1b[0m\n" : "\n";
  }
  return text;
}

}  // namespace cuttle::cli
