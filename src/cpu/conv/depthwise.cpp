#include "cpu/conv/depthwise.hpp"

#include <algorithm>
#include <vector>

#include "cpu/conv/product.hpp"
#include "cpu/dispatch.hpp"
#include "cpu/eigen.hpp"
#include "cpu/layout.hpp"
#include "cpu/parallel.hpp"

namespace cuttle::cpu {

namespace {

/// K channels c*M + j regrouped as M planes j of C channels, so that every plane lies like x. With M = 1 nothing moves.
template <class T> Tensor split_planes(const Tensor& t, std::int64_t multiplier) {
  if (multiplier == 1) return t;
  const Tensor planes = Tensor::empty(t.shape(), t.options());
  const std::int64_t channels = t.size(1) / multiplier;
  transpose(t.raw_data(), planes.raw_mutable_data(), sizeof(T), t.numel() / t.size(1), channels, multiplier);
  return planes;
}

template <class T> void join_planes(const Tensor& planes, std::int64_t multiplier, const Tensor& t) {
  if (multiplier == 1) return;
  const std::int64_t channels = t.size(1) / multiplier;
  transpose(planes.raw_data(), t.raw_mutable_data(), sizeof(T), t.numel() / t.size(1), multiplier, channels);
}

/// Filters w[K,R,S] as [M,R*S,C]: the weights of one tap lie like a pixel.
template <class T> Tensor weights_by_tap(const Tensor& w, std::int64_t multiplier) {
  const std::int64_t filters = w.size(0), taps = w.size(2) * w.size(3), channels = filters / multiplier;
  const Tensor result = Tensor::empty({multiplier, taps, channels}, {.dtype = w.dtype()});
  const T* from = w.data<T>();
  T* to = writable<T>(result);
  for (std::int64_t k = 0; k < filters; ++k) {
    const std::int64_t plane = k % multiplier, channel = k / multiplier;
    for (std::int64_t tap = 0; tap < taps; ++tap) to[(plane * taps + tap) * channels + channel] = from[k * taps + tap];
  }
  return result;
}

/// Products of two rows of channels that are summed channel by channel.
template <class T> struct Term {
  const T* a;
  const T* b;
};

/// Channels from `c` on, N at a time, so that the sums stay in registers over the terms.
template <class T, int N>
std::int64_t sum_lanes(const std::vector<Term<T>>& terms, std::int64_t c, std::int64_t channels, const T* start,
                       T* out) {
  using Lanes = Eigen::Array<T, N, 1>;
  using Read = Eigen::Map<const Lanes>;
  for (; c + N <= channels; c += N) {
    Lanes sum = Lanes::Zero();
    if (start) sum = Read(start + c);
    for (const Term<T>& term : terms) sum += Read(term.a + c) * Read(term.b + c);
    Eigen::Map<Lanes>(out + c) = sum;
  }
  return c;
}

/// out[c] = start[c] + sum of a[c]*b[c] over the terms; start may be null (0) or out.
template <class T> void sum_terms(const std::vector<Term<T>>& terms, std::int64_t channels, const T* start, T* out) {
  std::int64_t c = sum_lanes<T, 64>(terms, 0, channels, start, out);
  c = sum_lanes<T, 16>(terms, c, channels, start, out);
  sum_lanes<T, 1>(terms, c, channels, start, out);
}

/// Where tap `tap` reads for output place `place`, which may be outside the image.
std::int64_t read_at(std::int64_t place, std::int64_t tap, std::int64_t stride, std::int64_t padding,
                     std::int64_t dilation) {
  return place * stride - padding + tap * dilation;
}

/// [size, taps]: the output place at which a tap reads a line or column of the input, or -1 if there is none.
std::vector<std::int64_t> places_reading(std::int64_t size, std::int64_t taps, std::int64_t places, std::int64_t stride,
                                         std::int64_t padding, std::int64_t dilation) {
  std::vector<std::int64_t> result;
  for (std::int64_t at = 0; at < size; ++at) {
    for (std::int64_t tap = 0; tap < taps; ++tap) {
      const std::int64_t moved = at + padding - tap * dilation;
      const bool is_read = moved >= 0 && moved % stride == 0 && moved / stride < places;
      result.push_back(is_read ? moved / stride : -1);
    }
  }
  return result;
}

}  // namespace

template <class T>
void depthwise_forward(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2dOptions& o, const Tensor& y) {
  const std::int64_t height = x.size(2), width = x.size(3), channels = x.size(1), multiplier = y.size(1) / channels;
  const std::int64_t places_h = y.size(2), places_w = y.size(3), taps = w.size(2) * w.size(3);
  const Tensor weights = weights_by_tap<T>(w, multiplier);
  const Tensor planes = multiplier == 1 ? y : Tensor::empty(y.shape(), y.options());
  Tensor starts = bias;
  if (bias.defined() && multiplier > 1) {
    starts = Tensor::empty(bias.shape(), bias.options());
    transpose(bias.raw_data(), starts.raw_mutable_data(), sizeof(T), 1, channels, multiplier);
  }
  parallel_for(x.size(0) * places_h, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<Term<T>> terms;
    for (std::int64_t line = begin; line < end; ++line) {
      const T* image = x.data<T>() + line / places_h * height * width * channels;
      const std::int64_t top = read_at(line % places_h, 0, o.stride.h, o.padding.h, o.dilation.h);
      T* out = writable<T>(planes) + line * places_w * multiplier * channels;
      for (std::int64_t i = 0; i < places_w * multiplier; ++i, out += channels) {
        const std::int64_t plane = i % multiplier;
        const std::int64_t left = read_at(i / multiplier, 0, o.stride.w, o.padding.w, o.dilation.w);
        const T* weight = weights.data<T>() + plane * taps * channels;
        terms.clear();
        for (std::int64_t r = 0, h = top; r < w.size(2); ++r, h += o.dilation.h) {
          for (std::int64_t s = 0, v = left; s < w.size(3); ++s, v += o.dilation.w, weight += channels) {
            const bool inside = h >= 0 && h < height && v >= 0 && v < width;
            if (inside) terms.push_back({image + (h * width + v) * channels, weight});
          }
        }
        sum_terms(terms, channels, bias.defined() ? starts.data<T>() + plane * channels : nullptr, out);
      }
    }
  });
  join_planes<T>(planes, multiplier, y);
}

template <class T>
void depthwise_backward_data(const Tensor& dy, const Tensor& w, const Conv2dOptions& o, const Tensor& dx) {
  const std::int64_t height = dx.size(2), width = dx.size(3), channels = dx.size(1), multiplier = dy.size(1) / channels;
  const std::int64_t places_h = dy.size(2), places_w = dy.size(3), taps = w.size(2) * w.size(3);
  const Tensor weights = weights_by_tap<T>(w, multiplier), planes = split_planes<T>(dy, multiplier);
  const std::vector<std::int64_t> lines =
      places_reading(height, w.size(2), places_h, o.stride.h, o.padding.h, o.dilation.h);
  const std::vector<std::int64_t> columns =
      places_reading(width, w.size(3), places_w, o.stride.w, o.padding.w, o.dilation.w);
  parallel_for(dx.size(0) * height, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<Term<T>> terms;
    for (std::int64_t line = begin; line < end; ++line) {
      const T* image = planes.data<T>() + line / height * places_h * places_w * multiplier * channels;
      const std::int64_t* p = lines.data() + line % height * w.size(2);
      T* out = writable<T>(dx) + line * width * channels;
      for (std::int64_t v = 0; v < width; ++v, out += channels) {
        const std::int64_t* q = columns.data() + v * w.size(3);
        const T* weight = weights.data<T>();
        terms.clear();
        for (std::int64_t r = 0; r < w.size(2); ++r) {
          for (std::int64_t s = 0; s < w.size(3); ++s, weight += channels) {
            if (p[r] < 0 || q[s] < 0) continue;
            const T* place = image + (p[r] * places_w + q[s]) * multiplier * channels;
            for (std::int64_t j = 0; j < multiplier; ++j) {
              terms.push_back({place + j * channels, weight + j * taps * channels});
            }
          }
        }
        sum_terms<T>(terms, channels, nullptr, out);
      }
    }
  });
}

template <class T>
void depthwise_backward_filter(const Tensor& dy, const Tensor& x, const Conv2dOptions& o, const Tensor& dw,
                               bool accumulate) {
  const std::int64_t height = x.size(2), width = x.size(3), channels = x.size(1), multiplier = dy.size(1) / channels;
  const std::int64_t places_h = dy.size(2), places_w = dy.size(3), taps = dw.size(2) * dw.size(3);
  const Tensor planes = split_planes<T>(dy, multiplier);
  const Tensor sums_by_tap = Tensor::empty({multiplier, taps, channels}, {.dtype = dw.dtype()});

  const auto add_lines = [&](std::int64_t plane, std::int64_t begin, std::int64_t end, T* sums) {
    std::vector<Term<T>> terms;
    for (std::int64_t i = begin * taps; i < end * taps; ++i) {
      const std::int64_t tap = i % taps, line = i / taps;
      const std::int64_t h = read_at(line % places_h, tap / dw.size(3), o.stride.h, o.padding.h, o.dilation.h);
      if (h < 0 || h >= height) continue;
      const T* image_line = x.data<T>() + (line / places_h * height + h) * width * channels;
      const T* place = planes.data<T>() + (line * places_w * multiplier + plane) * channels;
      terms.clear();
      for (std::int64_t q = 0; q < places_w; ++q) {
        const std::int64_t v = read_at(q, tap % dw.size(3), o.stride.w, o.padding.w, o.dilation.w);
        if (v < 0 || v >= width) continue;
        terms.push_back({place + q * multiplier * channels, image_line + v * channels});
      }
      T* sum = sums + (plane * taps + tap) * channels;
      sum_terms<T>(terms, channels, sum, sum);
    }
  };
  add_parts<T>(x.size(0) * places_h, 1, multiplier, dw.numel(), writable<T>(sums_by_tap), false, add_lines);

  const T* sums = sums_by_tap.data<T>();
  T* out = writable<T>(dw);
  for (std::int64_t k = 0; k < dw.size(0); ++k) {
    for (std::int64_t tap = 0; tap < taps; ++tap) {
      const T sum = sums[(k % multiplier * taps + tap) * channels + k / multiplier];
      out[k * taps + tap] = accumulate ? out[k * taps + tap] + sum : sum;
    }
  }
}

#define CUTTLE_INSTANTIATE(T)                                                                                  \
  template void depthwise_forward<T>(const Tensor&, const Tensor&, const Tensor&, const Conv2dOptions&,        \
                                     const Tensor&);                                                           \
  template void depthwise_backward_data<T>(const Tensor&, const Tensor&, const Conv2dOptions&, const Tensor&); \
  template void depthwise_backward_filter<T>(const Tensor&, const Tensor&, const Conv2dOptions&, const Tensor&, bool);
CUTTLE_INSTANTIATE(float)
CUTTLE_INSTANTIATE(double)
#undef CUTTLE_INSTANTIATE

}  // namespace cuttle::cpu
