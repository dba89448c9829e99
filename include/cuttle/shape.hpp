#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace cuttle {

/// Order of a 4-D tensor in memory. The logical shape is N,C,H,W either way; tensors of other ranks are row-major.
/// Filters K,C,R,S carry the tag too: nhwc stores them K,R,S,C.
enum class Layout : std::uint8_t { nhwc, nchw };

constexpr std::string_view name_of(Layout layout) { return layout == Layout::nhwc ? "NHWC" : "NCHW"; }

/// Up to 6 non-negative sizes; rank 0 is a scalar with one element.
class Shape {
 public:
  static constexpr int kMaxRank = 6;
  Shape() = default;
  Shape(std::initializer_list<std::int64_t> sizes);
  explicit Shape(std::span<const std::int64_t> sizes);

  int rank() const { return rank_; }
  std::int64_t operator[](int i) const { return sizes_[static_cast<std::size_t>(i < 0 ? i + rank_ : i)]; }
  std::int64_t& operator[](int i) { return sizes_[static_cast<std::size_t>(i < 0 ? i + rank_ : i)]; }
  /// Product of the sizes. Throws ShapeError if it does not fit 63 bits.
  std::int64_t numel() const;
  const std::int64_t* begin() const { return sizes_.data(); }
  const std::int64_t* end() const { return sizes_.data() + rank_; }
  std::string str() const;  ///< "[256,64,56,56]"
  friend bool operator==(const Shape& a, const Shape& b);

  /// Whether both layouts store this shape in one order: not of rank 4, one channel, or one pixel.
  bool is_layout_free() const { return rank_ != 4 || sizes_[1] == 1 || sizes_[2] * sizes_[3] == 1; }

 private:
  std::array<std::int64_t, kMaxRank> sizes_{};
  int rank_ = 0;
};

/// A size in height and width; converts from one number for both.
struct Size2 {
  std::int64_t h = 0, w = 0;
  constexpr Size2() = default;
  constexpr Size2(std::int64_t both) : h(both), w(both) {}  // NOLINT: {.kernel = 3} is the point
  constexpr Size2(std::int64_t height, std::int64_t width) : h(height), w(width) {}
  friend bool operator==(Size2, Size2) = default;
};

}  // namespace cuttle
