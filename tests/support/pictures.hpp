#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuttle/data.hpp"
#include "cuttle/error.hpp"
#include "cuttle/serialization.hpp"
#include "data/picture_file.hpp"
#include "support/source_folder.hpp"
#include "support/temporary_folder.hpp"

/// The pictures of tests/golden/make_pictures.py and how tests ask about them.
namespace cuttle::pictures {

using FileBytes = std::vector<std::uint8_t>;

inline constexpr std::int64_t kHeight = 24, kWidth = 20;  ///< of most of them

inline std::string golden_file(const std::string& name) { return source_folder() + "/tests/golden/pictures/" + name; }
inline FileBytes golden_bytes(const std::string& name) { return read_bytes(golden_file(name)); }
inline data::Picture golden(const std::string& name) { return data::read_picture(golden_file(name)); }

/// What Pillow made of the same picture.
inline FileBytes expected(const std::string& name) {
  static const SafetensorsFile file = load_safetensors(golden_file("expected.safetensors"));
  for (const auto& entry : file.tensors) {
    if (entry.name == name) return entry.tensor.to_vector<std::uint8_t>();
  }
  throw std::out_of_range(name);
}

inline void check_close(const FileBytes& a, const FileBytes& b, int tolerance) {
  REQUIRE(a.size() == b.size());
  int worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  CHECK(worst <= tolerance);
}

inline void check_size(const data::Picture& picture, std::int64_t height, std::int64_t width, std::int64_t channels) {
  CHECK(picture.height == height);
  CHECK(picture.width == width);
  CHECK(picture.channels == channels);
}

/// The cause of the DataError that decoding throws; it must name the file.
inline std::string cause(const FileBytes& bytes) {
  try {
    data::decode_picture("a/picture", bytes);
  } catch (const DataError& error) {
    CHECK_MESSAGE(error.cause().find("'a/picture'") != std::string::npos, error.cause());
    return error.cause();
  }
  FAIL_CHECK("no DataError");
  return {};
}

inline void contains(const std::string& text, const std::string& part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
}

inline data::Picture from_bytes(const FileBytes& bytes) { return data::decode_picture("picture", bytes); }

/// A hostile picture is decoded or refused by a DataError that names it.
inline void check_survives(const FileBytes& bytes) {
  try {
    const data::Picture picture = from_bytes(bytes);
    CHECK(picture.pixels.size() == static_cast<std::size_t>(picture.height * picture.width * picture.channels));
  } catch (const DataError& error) {
    CHECK(error.cause().find("'picture'") != std::string::npos);
  }
}

}  // namespace cuttle::pictures
