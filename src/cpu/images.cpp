#include <algorithm>

#include "cpu/dispatch.hpp"
#include "cpu/elementwise.hpp"
#include "cpu/layout.hpp"
#include "cpu/norm_channels.hpp"

namespace cuttle::cpu {
namespace {

/// Each NHWC image as its window (top, left, flip) shows it; black outside.
Tensor moved(const Tensor& pixels, const Tensor& windows) {
  const Tensor result = Tensor::empty(pixels.shape(), pixels.options());
  const std::int64_t channels = pixels.size(1), height = pixels.size(2), width = pixels.size(3);
  const std::uint8_t* from = pixels.data<std::uint8_t>();
  std::uint8_t* to = writable<std::uint8_t>(result);
  const std::int32_t* window = windows.data<std::int32_t>();
  parallel_for(pixels.size(0) * height, row_grain(width * channels), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int32_t* of_image = window + i / height * 3;
      const std::int64_t row = i % height + of_image[0];
      const std::uint8_t* source = from + (i / height * height + row) * width * channels;
      std::uint8_t* pixel = to + i * width * channels;
      for (std::int64_t w = 0; w < width; ++w, pixel += channels) {
        const std::int64_t column = (of_image[2] != 0 ? width - 1 - w : w) + of_image[1];
        if (row >= 0 && row < height && column >= 0 && column < width) {
          std::copy_n(source + column * channels, channels, pixel);
        } else {
          std::fill_n(pixel, channels, std::uint8_t{0});
        }
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
