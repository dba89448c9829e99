#pragma once
#include <algorithm>
#include <cstdint>

#include "cuda/kernels/dispatch.cuh"
#include "cuttle/ops.hpp"

/// What the pooling kernels share. Pooling never mixes channels: an NCHW tensor is N*C images of one channel, and takes
/// the same kernels as NHWC, with scalar accesses.
namespace cuttle::cuda {

struct PoolImages {
  std::int64_t count, channels;
  std::int64_t height, width;          ///< of the input
  std::int64_t out_height, out_width;  ///< of the output

  PoolImages(const Tensor& in, const Tensor& out)
      : count(in.size(0)),
        channels(in.size(1)),
        height(in.size(2)),
        width(in.size(3)),
        out_height(out.size(2)),
        out_width(out.size(3)) {
    if (in.layout() == Layout::nchw) {
      count *= channels;
      channels = 1;
    }
  }
  std::int64_t in_size() const { return height * width * channels; }
  std::int64_t out_size() const { return out_height * out_width * channels; }
};

/// One axis of windows at a constant step.
struct WindowAxis {
  int input, output, kernel, stride, padding, dilation;
  bool count_padding;
  Divider by_stride;

  /// Inputs [first, end) of output p and what an average divides by. Without dilation.
  __device__ void window(int p, int& first, int& end, int& divisor) const {
    const int start = p * stride - padding;
    first = max(start, 0);
    end = min(start + kernel, input);
    // PyTorch counts the padding but not what ceil_mode lets a window reach beyond it.
    divisor = count_padding ? min(start + kernel, input + padding) - start : end - first;
  }
  /// Outputs [first, end) whose window reaches over input i (with dilation, it need not read it).
  __device__ void readers(int i, int& first, int& end) const {
    const int from = i + padding - (kernel - 1) * dilation;
    first = from > 0 ? static_cast<int>(by_stride.divide(from + stride - 1)) : 0;
    end = min(static_cast<int>(by_stride.divide(i + padding)), output - 1) + 1;
  }
};

/// One axis of adaptive windows: output p reads [floor(p*input/output), ceil((p+1)*input/output)).
struct AdaptiveAxis {
  int input, output;

  __device__ void window(int p, int& first, int& end, int& divisor) const {
    first = static_cast<int>(std::int64_t{p} * input / output);
    end = static_cast<int>(((p + std::int64_t{1}) * input + output - 1) / output);
    divisor = end - first;
  }
  /// p*input/output < i + 1 and (p+1)*input/output > i, solved for p.
  __device__ void readers(int i, int& first, int& end) const {
    first = static_cast<int>(std::int64_t{i} * output / input);
    end = static_cast<int>(((i + std::int64_t{1}) * output + input - 1) / input);
  }
};

template <class Axis> struct Axes { Axis h, w; };

inline Axes<WindowAxis> window_axes(const PoolImages& images, const Pool2dOptions& o) {
  const auto axis = [&](std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride,
                        std::int64_t padding, std::int64_t dilation) {
    // Sizes are below 2^31 (checked by the op); one whose reach is not is as good as the largest that is.
    const auto capped = [](std::int64_t v) { return static_cast<int>(std::min<std::int64_t>(v, 1 << 29)); };
    return WindowAxis{static_cast<int>(in), static_cast<int>(out), capped(kernel),      capped(stride),
                      capped(padding),      capped(dilation),      o.count_include_pad, Divider(capped(stride))};
  };
  return {axis(images.height, images.out_height, o.kernel.h, o.stride.h, o.padding.h, o.dilation.h),
          axis(images.width, images.out_width, o.kernel.w, o.stride.w, o.padding.w, o.dilation.w)};
}

inline Axes<AdaptiveAxis> adaptive_axes(const PoolImages& images) {
  return {{static_cast<int>(images.height), static_cast<int>(images.out_height)},
          {static_cast<int>(images.width), static_cast<int>(images.out_width)}};
}

/// Coordinates of a thread that owns one chunk of channels of one pixel.
struct Grid {
  Divider by_channels, by_width, by_height;
  std::uint32_t total;  ///< threads

  /// Over [count, height, width, chunks].
  Grid(std::int64_t count, std::int64_t height, std::int64_t width, std::int64_t chunks)
      : by_channels(chunks),
        by_width(width),
        by_height(height),
        total(static_cast<std::uint32_t>(count * height * width * chunks)) {}

  struct Place {
    std::uint32_t image, chunk;
    int h, w;
  };
  __device__ Place place(std::uint32_t i) const {
    Place at{};
    at.chunk = by_channels.take(i);
    at.w = static_cast<int>(by_width.take(i));
    at.h = static_cast<int>(by_height.take(i));
    at.image = i;
    return at;
  }
};

}  // namespace cuttle::cuda
