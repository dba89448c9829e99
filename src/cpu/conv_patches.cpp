#include "cpu/conv_patches.hpp"

#include <algorithm>

namespace cuttle::cpu {

template <class T> std::int64_t Patches<T>::depth() const {
  std::int64_t taps = 0;
  for (const TapRun& run : runs) taps += run.taps;
  return taps * channels;
}

template <class T> void Patches<T>::add_tap(std::int64_t h, std::int64_t w) {
  const bool joins =
      channels == pixel_step && !runs.empty() && runs.back().h == h && runs.back().w + runs.back().taps == w;
  if (joins) {
    ++runs.back().taps;
  } else {
    runs.push_back({h, w, 1});
  }
}

namespace {

/// Elements [begin, end) of a run, and where they go in a row of the copy.
struct Segment {
  TapRun run;
  std::int64_t begin, end, to;
};

template <class T>
std::vector<Segment> segments_of(const Patches<T>& patches, std::int64_t column, std::int64_t columns) {
  std::vector<Segment> segments;
  std::int64_t first = 0;
  for (const TapRun& run : patches.runs) {
    const std::int64_t length = run.taps * patches.channels;
    const std::int64_t begin = std::max(column - first, std::int64_t{0}),
                       end = std::min(column + columns - first, length);
    if (begin < end) segments.push_back({run, begin, end, first + begin - column});
    first += length;
  }
  return segments;
}

/// Copies one segment for the place whose corner is pixel (h, w) of `image`.
template <class T>
void copy_segment(const Patches<T>& patches, const Segment& s, const T* image, std::int64_t h, std::int64_t w, T* out) {
  h += s.run.h;
  w += s.run.w;
  out += s.to;
  if (h < 0 || h >= patches.height) {
    std::fill(out, out + (s.end - s.begin), T(0));
    return;
  }
  const T* from = image + (h * patches.width + w) * patches.pixel_step;
  if (w >= 0 && w + s.run.taps <= patches.width) {
    std::copy(from + s.begin, from + s.end, out);
    return;
  }
  const std::int64_t inside_begin = std::clamp(-w, std::int64_t{0}, s.run.taps) * patches.channels;
  const std::int64_t inside_end = std::clamp(patches.width - w, std::int64_t{0}, s.run.taps) * patches.channels;
  const std::int64_t begin = std::clamp(inside_begin, s.begin, s.end), end = std::clamp(inside_end, begin, s.end);
  std::fill(out, out + (begin - s.begin), T(0));
  std::copy(from + begin, from + end, out + (begin - s.begin));
  std::fill(out + (end - s.begin), out + (s.end - s.begin), T(0));
}

}  // namespace

template <class T>
void copy_patches(const Patches<T>& patches, std::int64_t row, std::int64_t rows, std::int64_t column,
                  std::int64_t columns, T* out, std::int64_t out_step) {
  const std::vector<Segment> segments = segments_of(patches, column, columns);
  std::int64_t q = row % patches.places_w, p = row / patches.places_w % patches.places_h;
  const T* image = patches.images;
  const std::int64_t image_step = patches.height * patches.width * patches.pixel_step;
  image += row / patches.places_w / patches.places_h * image_step;
  for (std::int64_t i = 0; i < rows; ++i, out += out_step) {
    for (const Segment& s : segments) {
      copy_segment(patches, s, image, p * patches.stride.h, q * patches.stride.w, out);
    }
    if (++q < patches.places_w) continue;
    q = 0;
    if (++p < patches.places_h) continue;
    p = 0;
    image += image_step;
  }
}

#define CUTTLE_INSTANTIATE(T)                                                                                  \
  template struct Patches<T>;                                                                                  \
  template void copy_patches<T>(const Patches<T>&, std::int64_t, std::int64_t, std::int64_t, std::int64_t, T*, \
                                std::int64_t);
CUTTLE_INSTANTIATE(float)
CUTTLE_INSTANTIATE(double)
#undef CUTTLE_INSTANTIATE

}  // namespace cuttle::cpu
