#pragma once
#include <cstdint>
#include <optional>
#include <vector>

namespace cuttle {

/// Writes BMP files of any kind, also such as no library would write.
struct BmpFile {
  std::uint32_t header = 40;
  std::int32_t width = 1, height = 1;  ///< a negative height: rows are stored from above
  int bits = 24;
  std::uint32_t compression = 0;
  std::vector<std::uint32_t> masks = {};
  std::vector<std::uint8_t> palette = {};          ///< as stored
  std::optional<std::uint32_t> colours_said = {};  ///< else as many as the palette has
  std::vector<std::uint8_t> gap = {};              ///< before the pixels
  std::optional<std::uint32_t> offset_said = {};   ///< else where the pixels lie

  /// From colours red, green, blue.
  BmpFile with_palette(const std::vector<std::uint8_t>& rgb) const {
    BmpFile result = *this;
    result.palette.clear();
    for (std::size_t i = 0; i < rgb.size(); i += 3) {
      result.palette.insert(result.palette.end(), {rgb[i + 2], rgb[i + 1], rgb[i]});
      if (header != 12) result.palette.push_back(0);
    }
    return result;
  }

  /// `rows` are in the order of the file and get their padding.
  std::vector<std::uint8_t> bytes(const std::vector<std::vector<std::uint8_t>>& rows) const {
    std::vector<std::uint8_t> info;
    const auto put = [&](std::uint32_t value, int count) {
      for (int i = 0; i < count; ++i) info.push_back(static_cast<std::uint8_t>(value >> 8 * i));
    };
    const int side = header == 12 ? 2 : 4;
    put(header, 4);
    put(static_cast<std::uint32_t>(width), side);
    put(static_cast<std::uint32_t>(height), side);
    put(1, 2);
    put(static_cast<std::uint32_t>(bits), 2);
    if (header != 12) {
      put(compression, 4);
      for (int i = 0; i < 3; ++i) put(0, 4);
      put(colours_said.value_or(static_cast<std::uint32_t>(palette.size() / 4)), 4);
      put(0, 4);
    }
    for (const std::uint32_t mask : masks) put(mask, 4);
    if (info.size() < header) info.resize(header);
    for (const auto* part : {&palette, &gap}) info.insert(info.end(), part->begin(), part->end());

    const auto offset = offset_said.value_or(static_cast<std::uint32_t>(14 + info.size()));
    std::vector<std::uint8_t> file{'B', 'M', 0, 0, 0, 0, 0, 0, 0, 0};
    for (int i = 0; i < 4; ++i) file.push_back(static_cast<std::uint8_t>(offset >> 8 * i));
    file.insert(file.end(), info.begin(), info.end());
    for (const auto& row : rows) {
      file.insert(file.end(), row.begin(), row.end());
      file.resize(file.size() + (4 - row.size() % 4) % 4);
    }
    return file;
  }
};

}  // namespace cuttle
