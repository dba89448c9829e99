#pragma once
#include <cstdint>
#include <vector>

#include "cuttle/shape.hpp"

namespace cuttle::cpu {

/// `taps` filter taps that read neighbouring pixels of a row, the first at (h, w) from the place's corner.
struct TapRun {
  std::int64_t h, w, taps;
};

/// An im2col matrix that is never whole: row (n,p,q) holds what a filter reads at place (p,q) of image n, run by run,
/// tap by tap, channel by channel; pixels outside the image read 0. Image: NHWC.
template <class T> struct Patches {
  const T* images;  ///< first channel that is read of the first pixel
  std::int64_t height, width;
  std::int64_t pixel_step;  ///< elements from a pixel to the next: all channels
  std::int64_t channels;    ///< that are read of each
  std::int64_t places_h, places_w;
  Size2 stride;  ///< pixels from a place's corner to the next
  std::vector<TapRun> runs;

  std::int64_t depth() const;  ///< columns of the matrix
  /// Adds a tap; joins it to the last run where memory goes on.
  void add_tap(std::int64_t h, std::int64_t w);
};

/// Copies rows [row, row+rows) and columns [column, column+columns) of the matrix to out[i*out_step + j].
template <class T>
void copy_patches(const Patches<T>& patches, std::int64_t row, std::int64_t rows, std::int64_t column,
                  std::int64_t columns, T* out, std::int64_t out_step);

}  // namespace cuttle::cpu
