#include "cuttle/shape.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cuttle/error.hpp"

namespace cuttle {

Shape::Shape(std::initializer_list<std::int64_t> sizes) : Shape(std::span(sizes.begin(), sizes.size())) {}

Shape::Shape(std::span<const std::int64_t> sizes) {
  if (sizes.size() > kMaxRank) {
    throw ShapeError(fmt::format("a shape of rank {} is beyond the {} dimensions Cuttle has", sizes.size(), kMaxRank));
  }
  for (const std::int64_t size : sizes) {
    if (size < 0) throw ShapeError(fmt::format("shape [{}] has a negative size", fmt::join(sizes, ",")));
    sizes_[static_cast<std::size_t>(rank_++)] = size;
  }
}

std::int64_t Shape::numel() const {
  std::int64_t n = 1;
  bool overflow = false;
  for (const std::int64_t size : *this) {
    if (size == 0) return 0;
    overflow |= __builtin_mul_overflow(n, size, &n);
  }
  if (overflow) throw ShapeError(fmt::format("shape {} has more than 2^63 elements", str()));
  return n;
}

std::string Shape::str() const { return fmt::format("[{}]", fmt::join(begin(), end(), ",")); }

bool operator==(const Shape& a, const Shape& b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

}  // namespace cuttle
