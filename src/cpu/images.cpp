#include <algorithm>

#include "cpu/dispatch.hpp"
#include "cpu/elementwise.hpp"
#include "cpu/layout.hpp"
#include "cpu/norm_channels.hpp"

namespace cuttle::cpu {
namespace {

/// The pixels of a row from `last` backwards; kChannels is 0 where the number is not known.
template <std::int64_t kChannels>
void copy_mirrored(const std::uint8_t* last, std::uint8_t* to, std::int64_t pixels, std::int64_t channels) {
  if (kChannels > 0) channels = kChannels;
  for (std::int64_t w = 0; w < pixels; ++w, last -= channels, to += channels) {
    for (std::int64_t c = 0; c < channels; ++c) to[c] = last[c];
  }
}

/// One row of `width` pixels as a window's left and flip show it; black outside.
void move_row(const std::uint8_t* row, std::int64_t left, bool flip, std::int64_t width, std::int64_t channels,
              std::uint8_t* to) {
  // What is seen of the row stands at [begin, end).
  const std::int64_t first = flip ? left : -left;
  const std::int64_t begin = std::clamp<std::int64_t>(first, 0, width);
  const std::int64_t end = std::clamp<std::int64_t>(first + width, 0, width);
  std::fill(to, to + begin * channels, std::uint8_t{0});
  std::fill(to + end * channels, to + width * channels, std::uint8_t{0});
  if (begin == end) return;
  if (!flip) {
    std::copy_n(row + (begin + left) * channels, (end - begin) * channels, to + begin * channels);
    return;
  }
  const auto copy = channels == 1 ? copy_mirrored<1> : channels == 3 ? copy_mirrored<3> : copy_mirrored<0>;
  copy(row + (width - 1 - begin + left) * channels, to + begin * channels, end - begin, channels);
}

/// Each NHWC image as its window (top, left, flip) shows it; black outside.
Tensor moved(const Tensor& pixels, const Tensor& windows) {
  const Tensor result = Tensor::empty(pixels.shape(), pixels.options());
  const std::int64_t channels = pixels.size(1), height = pixels.size(2), width = pixels.size(3);
  const std::uint8_t* from = pixels.data<std::uint8_t>();
  std::uint8_t* to = writable<std::uint8_t>(result);
  const std::int32_t* window = windows.data<std::int32_t>();
  const std::int64_t row_bytes = width * channels;
  parallel_for(pixels.size(0) * height, row_grain(row_bytes), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t image = i / height, row = i % height + window[3 * image];
      if (row < 0 || row >= height) {
        std::fill_n(to + i * row_bytes, row_bytes, std::uint8_t{0});
      } else {
        move_row(from + (image * height + row) * row_bytes, window[3 * image + 1], window[3 * image + 2] != 0, width,
                 channels, to + i * row_bytes);
      }
    }
  });
  return result;
}

}  // namespace

/// (x/255 - mean) / stddev with the constants folded: (x - 255 mean) / (255 stddev).
void normalize_images(const Tensor& images, const Tensor& mean, const Tensor& stddev, const Tensor& windows,
                      const Tensor& out) {
  const std::int64_t channels = images.size(1);
  ChannelAffine affine{channel_values(mean, channels, 0), channel_values(stddev, channels, 1), {}};
  for (double& center : affine.center) center *= 255;
  for (double& factor : affine.scale) factor = 1 / (255 * factor);
  affine.shift.assign(affine.center.size(), 0);
  Tensor pixels = to_nhwc(images);
  if (windows.defined()) pixels = moved(pixels, windows);
  // 16-bit results are rounded from f32.
  const bool computed = out.dtype() == DType::f32 || out.dtype() == DType::f64;
  const bool direct = computed && out.layout() == Layout::nhwc;
  const Tensor result = direct ? out : Tensor::empty(out.shape(), {computed ? out.dtype() : DType::f32});
  dispatch_floating("normalize_images", result, [&]<class T>(T) {
    apply_affine(pixels.data<std::uint8_t>(), affine, columns_of(pixels), writable<T>(result));
  });
  if (!direct) convert(result, out);
}

}  // namespace cuttle::cpu
