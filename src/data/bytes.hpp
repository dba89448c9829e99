#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace cuttle::data {

using Bytes = std::span<const std::uint8_t>;

inline bool begins_with(Bytes bytes, Bytes magic) {
  return bytes.size() >= magic.size() && std::equal(magic.begin(), magic.end(), bytes.begin());
}

/// A number of 1 to 4 bytes, which must be there.
inline std::uint32_t big_endian(Bytes bytes, std::size_t at, int count) {
  std::uint32_t value = 0;
  for (int i = 0; i < count; ++i) value = value << 8 | bytes[at + static_cast<std::size_t>(i)];
  return value;
}

inline std::uint32_t little_endian(Bytes bytes, std::size_t at, int count) {
  std::uint32_t value = 0;
  for (int i = count - 1; i >= 0; --i) value = value << 8 | bytes[at + static_cast<std::size_t>(i)];
  return value;
}

}  // namespace cuttle::data
