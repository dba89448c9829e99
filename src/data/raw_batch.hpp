#pragma once
#include <cstdint>

#include "cuttle/data.hpp"

namespace cuttle::data {

/// Images as they lie in a set, with what belongs to them, side by side in one array: one copy brings all to a device.
struct RawBatch {
  Tensor bytes;    ///< u8, the array
  Tensor images;   ///< u8[N,C,H,W] NHWC, a part of it like the others
  Tensor labels;   ///< i64[N]
  Tensor windows;  ///< i32[N,3] as NormalizeOptions has them; undefined where images are not moved

  RawBatch() = default;
  /// In host memory, contents undefined.
  RawBatch(std::int64_t count, const ImageSet& set, bool moved);
  /// The same parts of another array of that size.
  RawBatch like(const Tensor& array) const;
};

}  // namespace cuttle::data
