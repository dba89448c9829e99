#include "cpu/conv/patches.hpp"

#include <algorithm>
#include <type_traits>

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

template <std::int64_t n> using Known = std::integral_constant<std::int64_t, n>;

/// Calls step(row, offset, n) until [0, length) of each row is covered, with n known to the compiler: rows are a few
/// elements (a first layer reads 1 to 9 at a time) or a few cache lines, and calling memcpy or memset for each would
/// take a tenth of the time of the product. The last line of a row may overlap the one before.
template <class T, class Step> void in_known_lengths(std::int64_t rows, std::int64_t length, const Step& step) {
  constexpr std::int64_t kLine = 64 / sizeof(T);
  const auto in_one = [&](auto n) {
    for (std::int64_t i = 0; i < rows; ++i) step(i, 0, n);
  };
  if (length >= kLine) {
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t j = 0; j < length - kLine; j += kLine) step(i, j, Known<kLine>());
      step(i, length - kLine, Known<kLine>());
    }
    return;
  }
  switch (length) {
    case 1: return in_one(Known<1>());
    case 2: return in_one(Known<2>());
    case 3: return in_one(Known<3>());
    case 6: return in_one(Known<6>());
    case 9: return in_one(Known<9>());
    default: return in_one(length);
  }
}

template <class T>
void copy_rows(const T* from, std::int64_t from_step, T* to, std::int64_t to_step, std::int64_t rows,
               std::int64_t length) {
  in_known_lengths<T>(rows, length, [=](std::int64_t i, std::int64_t j, auto n) {
    std::copy_n(from + i * from_step + j, n, to + i * to_step + j);
  });
}

template <class T> void clear_rows(T* to, std::int64_t to_step, std::int64_t rows, std::int64_t length) {
  in_known_lengths<T>(rows, length,
                      [=](std::int64_t i, std::int64_t j, auto n) { std::fill_n(to + i * to_step + j, n, T(0)); });
}

/// One place whose run starts at pixel w of `line` and may reach over either end.
template <class T>
void copy_clipped(const Patches<T>& patches, const Segment& s, const T* line, std::int64_t w, T* out) {
  const std::int64_t inside_begin = std::clamp(-w, std::int64_t{0}, s.run.taps) * patches.channels;
  const std::int64_t inside_end = std::clamp(patches.width - w, std::int64_t{0}, s.run.taps) * patches.channels;
  const std::int64_t begin = std::clamp(inside_begin, s.begin, s.end), end = std::clamp(inside_end, begin, s.end);
  out -= s.begin;
  if (s.begin < begin) clear_rows(out + s.begin, 0, 1, begin - s.begin);
  if (begin < end) copy_rows(line + w * patches.pixel_step + begin, 0, out + begin, 0, 1, end - begin);
  if (end < s.end) clear_rows(out + end, 0, 1, s.end - end);
}

/// Places [q, q+places) of one line of places, whose run starts in image line `line` (null outside the image).
template <class T>
void copy_line(const Patches<T>& patches, const Segment& s, const T* line, std::int64_t q, std::int64_t places, T* out,
               std::int64_t out_step) {
  const std::int64_t length = s.end - s.begin, stride = patches.stride.w;
  if (!line) return clear_rows(out, out_step, places, length);
  // Places [first, last) read inside the line: 0 <= q*stride + run.w and the run ends before the line does.
  const std::int64_t room = patches.width - s.run.taps - s.run.w;
  const std::int64_t first = std::clamp((stride - 1 - s.run.w) / stride, q, q + places);
  const std::int64_t last = std::clamp(room < 0 ? 0 : room / stride + 1, first, q + places);
  for (std::int64_t i = q; i < first; ++i) {
    copy_clipped(patches, s, line, i * stride + s.run.w, out + (i - q) * out_step);
  }
  copy_rows(line + (first * stride + s.run.w) * patches.pixel_step + s.begin, stride * patches.pixel_step,
            out + (first - q) * out_step, out_step, last - first, length);
  for (std::int64_t i = last; i < q + places; ++i) {
    copy_clipped(patches, s, line, i * stride + s.run.w, out + (i - q) * out_step);
  }
}

}  // namespace

template <class T>
void copy_patches(const Patches<T>& patches, std::int64_t row, std::int64_t rows, std::int64_t column,
                  std::int64_t columns, T* out, std::int64_t out_step) {
  const std::vector<Segment> segments = segments_of(patches, column, columns);
  const std::int64_t line_step = patches.width * patches.pixel_step;
  while (rows > 0) {
    const std::int64_t q = row % patches.places_w, line = row / patches.places_w;
    const std::int64_t p = line % patches.places_h, image = line / patches.places_h;
    const std::int64_t places = std::min(rows, patches.places_w - q);
    for (const Segment& s : segments) {
      const std::int64_t h = p * patches.stride.h + s.run.h;
      const bool inside = h >= 0 && h < patches.height;
      const T* from = inside ? patches.images + (image * patches.height + h) * line_step : nullptr;
      copy_line(patches, s, from, q, places, out + s.to, out_step);
    }
    row += places;
    rows -= places;
    out += places * out_step;
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
