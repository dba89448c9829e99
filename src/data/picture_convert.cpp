#include <fmt/format.h>
#if __has_include(<stb/stb_image_resize2.h>)
#include <stb/stb_image_resize2.h>
#else
#include <stb/stb_image_resize.h>
#endif

#include <cstring>
#include <utility>

#include "cuttle/data.hpp"
#include "cuttle/error.hpp"
#include "cuttle/ops.hpp"
#include "data/picture_file.hpp"

namespace cuttle::data {

namespace {

/// Lays grey or colour with alpha over white, as paper would show it.
Picture without_alpha(const Picture& in) {
  const std::int64_t colours = in.channels - 1;
  Picture out{in.height, in.width, colours, {}};
  out.pixels.reserve(static_cast<std::size_t>(in.height * in.width * colours));
  for (auto pixel = in.pixels.begin(); pixel != in.pixels.end(); pixel += in.channels) {
    const int alpha = pixel[colours];
    for (std::int64_t c = 0; c < colours; ++c) {
      out.pixels.push_back(static_cast<std::uint8_t>((pixel[c] * alpha + 255 * (255 - alpha) + 127) / 255));
    }
  }
  return out;
}

/// ITU-R BT.601 luma, in thousandths.
Picture to_grey(const Picture& in) {
  Picture out{in.height, in.width, 1, {}};
  out.pixels.reserve(static_cast<std::size_t>(in.height * in.width));
  for (auto pixel = in.pixels.begin(); pixel != in.pixels.end(); pixel += 3) {
    out.pixels.push_back(static_cast<std::uint8_t>((299 * pixel[0] + 587 * pixel[1] + 114 * pixel[2] + 500) / 1000));
  }
  return out;
}

Picture to_colour(const Picture& in) {
  Picture out{in.height, in.width, 3, {}};
  out.pixels.reserve(in.pixels.size() * 3);
  for (const std::uint8_t grey : in.pixels) out.pixels.insert(out.pixels.end(), 3, grey);
  return out;
}

/// Newer distributions ship the second version of the library, whose interface differs.
bool stb_resize(const Picture& in, Picture& out) {
  const int in_h = static_cast<int>(in.height), in_w = static_cast<int>(in.width);
  const int out_h = static_cast<int>(out.height), out_w = static_cast<int>(out.width);
  const int channels = static_cast<int>(in.channels);
#if __has_include(<stb/stb_image_resize2.h>)
  return stbir_resize(in.pixels.data(), in_w, in_h, 0, out.pixels.data(), out_w, out_h, 0,
                      static_cast<stbir_pixel_layout>(channels), STBIR_TYPE_UINT8, STBIR_EDGE_CLAMP,
                      STBIR_FILTER_TRIANGLE) != nullptr;
#else
  return stbir_resize_uint8_generic(in.pixels.data(), in_w, in_h, 0, out.pixels.data(), out_w, out_h, 0, channels,
                                    STBIR_ALPHA_CHANNEL_NONE, 0, STBIR_EDGE_CLAMP, STBIR_FILTER_TRIANGLE,
                                    STBIR_COLORSPACE_LINEAR, nullptr) != 0;
#endif
}

Picture resized(Picture in, std::int64_t height, std::int64_t width) {
  if (in.height == height && in.width == width) return in;
  Picture out{height, width, in.channels, {}};
  out.pixels.resize(static_cast<std::size_t>(Shape{height, width, in.channels}.numel()));
  if (!stb_resize(in, out)) {
    throw Error(fmt::format("a picture of {}x{} could not be resized to {}x{}", in.height, in.width, height, width));
  }
  return out;
}

}  // namespace

Picture convert_picture(const Picture& picture, std::int64_t channels, std::int64_t height, std::int64_t width) {
  check_picture("convert_picture", picture);
  if ((channels != 1 && channels != 3) || height < 1 || width < 1) {
    throw UsageError(fmt::format("a picture cannot be converted to {} channels of {}x{}", channels, height, width),
                     "channels are 1 or 3");
  }
  Picture result = picture.channels % 2 == 0 ? without_alpha(picture) : picture;
  if (result.channels == 3 && channels == 1) result = to_grey(result);
  result = resized(std::move(result), height, width);
  return result.channels == 1 && channels == 3 ? to_colour(result) : result;
}

Tensor to_tensor(const Picture& picture, std::span<const float> mean, std::span<const float> stddev, Device device) {
  check_picture("to_tensor", picture);
  const Shape channels{picture.channels};
  if (std::cmp_not_equal(mean.size(), picture.channels) || std::cmp_not_equal(stddev.size(), picture.channels)) {
    throw ShapeError(fmt::format("to_tensor: {} means and {} deviations for a picture of {} channels", mean.size(),
                                 stddev.size(), picture.channels));
  }
  Tensor images = Tensor::empty({1, picture.channels, picture.height, picture.width}, {.dtype = DType::u8});
  std::memcpy(images.mutable_data<std::uint8_t>(), picture.pixels.data(), picture.pixels.size());
  const Tensor means = Tensor::from(std::vector<float>(mean.begin(), mean.end()), channels).to(device);
  const Tensor deviations = Tensor::from(std::vector<float>(stddev.begin(), stddev.end()), channels).to(device);
  return normalize_images(images.to(device), means, deviations);
}

}  // namespace cuttle::data
