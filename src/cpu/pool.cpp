#include <algorithm>

#include "cpu/dispatch.hpp"
#include "cpu/elementwise.hpp"
#include "cpu/pool_axis.hpp"
#include "cpu/pool_max.hpp"
#include "cpu/register.hpp"
#include "kernels.hpp"

namespace cuttle::cpu {
namespace {

struct Axes {
  Axis h, w;
};

Axes average_axes(const Tensor& x, const Tensor& y, const Pool2dOptions& o) {
  return {pooling_axis(x.size(2), y.size(2), {o.kernel.h, o.stride.h, o.padding.h, 1, o.count_include_pad}),
          pooling_axis(x.size(3), y.size(3), {o.kernel.w, o.stride.w, o.padding.w, 1, o.count_include_pad})};
}

Axes adaptive_axes(const Tensor& x, const Tensor& y) {
  return {adaptive_axis(x.size(2), y.size(2)), adaptive_axis(x.size(3), y.size(3))};
}

/// Average of a window of pixels that starts at `corner`, for each channel. In double, as a window may be the whole
/// image.
template <class T>
void take_average(const T* corner, std::int64_t row, const Window& h, const Window& w, std::int64_t channels,
                  T* __restrict y) {
  constexpr std::int64_t kChunk = 64;
  double sum[kChunk];
  for (std::int64_t begin = 0; begin < channels; begin += kChunk) {
    const std::int64_t n = std::min(kChunk, channels - begin);
    std::fill_n(sum, n, 0.0);
    for (std::int64_t r = 0; r < h.count; ++r) {
      for (std::int64_t s = 0; s < w.count; ++s) {
        const T* pixel = corner + r * row + s * channels + begin;
        for (std::int64_t c = 0; c < n; ++c) sum[c] += static_cast<double>(pixel[c]);
      }
    }
    const double factor = 1 / (h.divisor * w.divisor);
    for (std::int64_t c = 0; c < n; ++c) y[begin + c] = static_cast<T>(sum[c] * factor);
  }
}

template <class T> void average(const T* x, const Images& image, const Axes& axes, T* y) {
  const std::int64_t channels = image.channels, row = image.width * channels;
  const std::int64_t out_height = axes.h.output(), out_width = axes.w.output();
  parallel_for(image.count * out_height, row_grain(image.height * row / out_height),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) {
                   const Window& h = axes.h.windows[static_cast<std::size_t>(i % out_height)];
                   const T* top = x + (i / out_height * image.height + h.first) * row;
                   for (std::int64_t q = 0; q < out_width; ++q) {
                     const Window& w = axes.w.windows[static_cast<std::size_t>(q)];
                     take_average(top + w.first * channels, row, h, w, channels, y + (i * out_width + q) * channels);
                   }
                 }
               });
}

template <class T> void add_scaled(const T* __restrict dy, T factor, std::int64_t channels, T* __restrict dx) {
  for (std::int64_t c = 0; c < channels; ++c) dx[c] += dy[c] * factor;
}

/// Every input gathers from the windows that read it.
template <class T> void average_backward(const T* dy, const Images& image, const Axes& axes, T* dx) {
  const Readers rows(axes.h), columns(axes.w);
  const std::int64_t channels = image.channels, out_width = axes.w.output();
  const auto gather = [&](std::int64_t out_image, std::span<const Reader> of_row, std::span<const Reader> of_column,
                          T* pixel) {
    std::fill_n(pixel, channels, T{0});
    for (const Reader& row : of_row) {
      const double row_divisor = axes.h.windows[static_cast<std::size_t>(row.output)].divisor;
      for (const Reader& column : of_column) {
        const double divisor = row_divisor * axes.w.windows[static_cast<std::size_t>(column.output)].divisor;
        const T* from = dy + ((out_image + row.output) * out_width + column.output) * channels;
        add_scaled(from, static_cast<T>(1 / divisor), channels, pixel);
      }
    }
  };
  parallel_for(image.count * image.height, row_grain(image.width * channels),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) {
                   const std::int64_t out_image = i / image.height * axes.h.output();
                   for (std::int64_t w = 0; w < image.width; ++w) {
                     gather(out_image, rows.of(i % image.height), columns.of(w), dx + (i * image.width + w) * channels);
                   }
                 }
               });
}

void avg_pool2d(const Tensor& x, const Pool2dOptions& options, const Tensor& y) {
  dispatch_floating("avg_pool2d", x,
                    [&]<class T>(T) { average(x.data<T>(), Images(x), average_axes(x, y, options), writable<T>(y)); });
}

void avg_pool2d_backward(const Tensor& dy, const Pool2dOptions& options, const Tensor& dx) {
  dispatch_floating("avg_pool2d backward", dy, [&]<class T>(T) {
    average_backward(dy.data<T>(), Images(dx), average_axes(dx, dy, options), writable<T>(dx));
  });
}

void adaptive_avg_pool2d(const Tensor& x, const Tensor& y) {
  dispatch_floating("adaptive_avg_pool2d", x,
                    [&]<class T>(T) { average(x.data<T>(), Images(x), adaptive_axes(x, y), writable<T>(y)); });
}

void adaptive_avg_pool2d_backward(const Tensor& dy, const Tensor& dx) {
  dispatch_floating("adaptive_avg_pool2d backward", dy, [&]<class T>(T) {
    average_backward(dy.data<T>(), Images(dx), adaptive_axes(dx, dy), writable<T>(dx));
  });
}

}  // namespace

void register_pool(Kernels& k) {
  k.max_pool2d = max_pool2d;
  k.max_pool2d_backward = max_pool2d_backward;
  k.avg_pool2d = avg_pool2d;
  k.avg_pool2d_backward = avg_pool2d_backward;
  k.adaptive_avg_pool2d = adaptive_avg_pool2d;
  k.adaptive_avg_pool2d_backward = adaptive_avg_pool2d_backward;
}

}  // namespace cuttle::cpu
