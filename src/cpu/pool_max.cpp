#include "cpu/pool_max.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "cpu/dispatch.hpp"
#include "cpu/elementwise.hpp"
#include "cpu/pool_axis.hpp"

namespace cuttle::cpu {
namespace {

struct Axes {
  Axis h, w;
  Axes(std::int64_t height, std::int64_t width, std::int64_t out_height, std::int64_t out_width, const Pool2dOptions& o)
      : h(pooling_axis(height, out_height, {o.kernel.h, o.stride.h, o.padding.h, o.dilation.h, false})),
        w(pooling_axis(width, out_width, {o.kernel.w, o.stride.w, o.padding.w, o.dilation.w, false})) {}
};

/// Calls body(Index{}) with the type of an argmax tensor, or with any where it is undefined.
template <class Body> void dispatch_index(const Tensor& argmax, Body&& body) {
  if (!argmax.defined() || argmax.dtype() == DType::u8) return body(std::uint8_t{});
  body(std::int32_t{});
}

/// A pixel that a window reads, and its place in the window.
template <class T> struct Tap {
  const T* pixel;
  int index;
};

/// As in PyTorch, the first of equals wins, and NaN wins over all.
template <class T> bool wins(T value, T best) { return value > best || value != value; }

/// Not inlined: GCC would interleave the calls for two taps and leave scalar code.
template <class T>
[[gnu::noinline]] void challenge(const T* __restrict pixel, int index, std::int64_t n, T* __restrict best,
                                 int* __restrict winner) {
  for (std::int64_t c = 0; c < n; ++c) {
    const T value = pixel[c], current = best[c];
    const int holder = winner[c];
    const bool better = wins(value, current);
    best[c] = better ? value : current;
    winner[c] = better ? index : holder;
  }
}

/// The winner of each channel among the taps of a window; argmax may be null.
template <class T, class Index>
void take_max(std::span<const Tap<T>> taps, std::int64_t channels, T* __restrict y, Index* __restrict argmax) {
  constexpr std::int64_t kChunk = 64;
  int winner[kChunk];
  T best[kChunk];
  for (std::int64_t begin = 0; begin < channels; begin += kChunk) {
    const std::int64_t n = std::min(kChunk, channels - begin);
    std::fill_n(best, n, -std::numeric_limits<T>::infinity());
    std::fill_n(winner, n, taps.empty() ? 0 : taps.front().index);
    for (const Tap<T>& tap : taps) challenge(tap.pixel + begin, tap.index, n, best, winner);
    std::copy_n(best, n, y + begin);
    if (!argmax) continue;
    for (std::int64_t c = 0; c < n; ++c) argmax[begin + c] = static_cast<Index>(winner[c]);
  }
}

/// The same for a window of 2x2 that lies inside the image: everything stays in registers.
template <bool kArgmax, class T, class Index>
void take_max_2x2(const T* __restrict upper, const T* __restrict lower, std::int64_t right, std::int64_t channels,
                  T* __restrict y, Index* __restrict argmax) {
  for (std::int64_t c = 0; c < channels; ++c) {
    const T taps[4] = {upper[c], upper[c + right], lower[c], lower[c + right]};
    T best = taps[0];
    int index = 0;
    for (int t = 1; t < 4; ++t) {
      const bool better = wins(taps[t], best);
      best = better ? taps[t] : best;
      index = better ? t : index;
    }
    y[c] = best;
    if constexpr (kArgmax) argmax[c] = static_cast<Index>(index);
  }
}

template <class T, class Index>
void forward(const T* x, const Images& image, const Axes& axes, Size2 kernel, T* y, Index* argmax) {
  const std::int64_t out_height = axes.h.output(), out_width = axes.w.output(), channels = image.channels;
  const std::int64_t row = image.width * channels;
  const auto pool_row = [&](std::int64_t i, std::vector<Tap<T>>& taps) {
    const Window& h = axes.h.windows[static_cast<std::size_t>(i % out_height)];
    const T* top = x + (i / out_height * image.height + h.first) * row;
    for (std::int64_t q = 0; q < out_width; ++q) {
      const Window& w = axes.w.windows[static_cast<std::size_t>(q)];
      const T* corner = top + w.first * channels;
      const std::int64_t at = (i * out_width + q) * channels;
      Index* const places = argmax ? argmax + at : nullptr;
      if (kernel == Size2(2) && h.count == 2 && w.count == 2) {
        const T* lower = corner + axes.h.step * row;
        const std::int64_t right = axes.w.step * channels;
        if (places) {
          take_max_2x2<true>(corner, lower, right, channels, y + at, places);
        } else {
          take_max_2x2<false>(corner, lower, right, channels, y + at, places);
        }
        continue;
      }
      taps.clear();
      for (std::int64_t r = 0; r < h.count; ++r) {
        for (std::int64_t s = 0; s < w.count; ++s) {
          taps.push_back({corner + r * axes.h.step * row + s * axes.w.step * channels,
                          static_cast<int>((h.first_tap + r) * kernel.w + w.first_tap + s)});
        }
      }
      take_max<T, Index>(taps, channels, y + at, places);
    }
  };
  parallel_for(image.count * out_height, row_grain(out_width * channels), [&](std::int64_t begin, std::int64_t end) {
    std::vector<Tap<T>> taps;
    for (std::int64_t i = begin; i < end; ++i) pool_row(i, taps);
  });
}

/// dx (+)= dy where the tap won.
template <bool kAdd, class T, class Index>
void take_gradient(const T* __restrict dy, const Index* __restrict argmax, int tap, std::int64_t channels,
                   T* __restrict dx) {
  for (std::int64_t c = 0; c < channels; ++c) {
    const T gradient = dy[c];
    const T taken = static_cast<int>(argmax[c]) == tap ? gradient : T{0};
    dx[c] = kAdd ? dx[c] + taken : taken;
  }
}

/// Every input gathers from the windows that read it, so that each is written once and rows need no locks.
template <class T, class Index>
void backward(const T* dy, const Index* argmax, const Images& image, const Axes& axes, std::int64_t kernel_width,
              T* dx) {
  const Readers rows(axes.h), columns(axes.w);
  const std::int64_t channels = image.channels, out_width = axes.w.output();
  const auto gather = [&](std::int64_t out_image, std::span<const Reader> of_row, std::span<const Reader> of_column,
                          T* pixel) {
    bool written = false;
    for (const Reader& row : of_row) {
      for (const Reader& column : of_column) {
        const std::int64_t at = ((out_image + row.output) * out_width + column.output) * channels;
        const int tap = static_cast<int>(row.tap * kernel_width + column.tap);
        if (written) {
          take_gradient<true>(dy + at, argmax + at, tap, channels, pixel);
        } else {
          take_gradient<false>(dy + at, argmax + at, tap, channels, pixel);
        }
        written = true;
      }
    }
    if (!written) std::fill_n(pixel, channels, T{0});
  };
  parallel_for(image.count * image.height, row_grain(image.width * channels),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t i = begin; i < end; ++i) {
                   const std::int64_t out_image = i / image.height * axes.h.output();
                   const std::span<const Reader> of_row = rows.of(i % image.height);
                   for (std::int64_t w = 0; w < image.width; ++w) {
                     gather(out_image, of_row, columns.of(w), dx + (i * image.width + w) * channels);
                   }
                 }
               });
}

}  // namespace

void max_pool2d(const Tensor& x, const Pool2dOptions& options, const Tensor& y, const Tensor& argmax) {
  dispatch_floating("max_pool2d", x, [&]<class T>(T) {
    dispatch_index(argmax, [&]<class Index>(Index) {
      const Images image(x);
      forward(x.data<T>(), image, Axes(image.height, image.width, y.size(2), y.size(3), options), options.kernel,
              writable<T>(y), argmax.defined() ? writable<Index>(argmax) : nullptr);
    });
  });
}

void max_pool2d_backward(const Tensor& dy, const Tensor& argmax, const Pool2dOptions& options, const Tensor& dx) {
  dispatch_floating("max_pool2d backward", dy, [&]<class T>(T) {
    dispatch_index(argmax, [&]<class Index>(Index) {
      const Images image(dx);
      backward(dy.data<T>(), argmax.data<Index>(), image,
               Axes(image.height, image.width, dy.size(2), dy.size(3), options), options.kernel.w, writable<T>(dx));
    });
  });
}

}  // namespace cuttle::cpu
