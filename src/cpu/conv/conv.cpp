#include <algorithm>
#include <limits>
#include <vector>

#include "cpu/conv/depthwise.hpp"
#include "cpu/conv/product.hpp"
#include "cpu/dispatch.hpp"
#include "cpu/elementwise.hpp"
#include "cpu/gemm.hpp"
#include "cpu/layout.hpp"
#include "cpu/register.hpp"
#include "kernels.hpp"

namespace cuttle::cpu {

namespace {

bool is_depthwise(const Tensor& w, const Conv2dOptions& o) { return o.groups > 1 && w.size(1) == 1; }

/// What the filters w[K,C/groups,R,S] read of x[N,C,H,W] for each place of y, in the order of w's own elements.
template <class T> Patches<T> forward_patches(const Tensor& x, const Shape& w, const Shape& y, const Conv2dOptions& o) {
  Patches<T> patches{x.data<T>(), x.size(2), x.size(3), x.size(1), w[1], y[2], y[3], o.stride, {}};
  for (std::int64_t r = 0; r < w[2]; ++r) {
    for (std::int64_t s = 0; s < w[3]; ++s) {
      patches.add_tap(r * o.dilation.h - o.padding.h, s * o.dilation.w - o.padding.w);
    }
  }
  return patches;
}

template <class T>
void forward(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2dOptions& o, const Tensor& y) {
  const std::int64_t filters = w.size(0) / o.groups, depth = w.numel() / w.size(0);
  const T* weights = w.data<T>();
  multiply_patches<T>({.patches = forward_patches<T>(x, w.shape(), y.shape(), o),
                       .images = x.size(0),
                       .groups = o.groups,
                       .columns = filters,
                       .out = writable<T>(y),
                       .out_height = y.size(2),
                       .out_width = y.size(3),
                       .out_offset = 0,
                       .out_stride = 1,
                       .bias = bias.defined() ? bias.data<T>() : nullptr,
                       .pack_panel = [=](std::int64_t group, std::int64_t panel, T* packed) {
                         pack_panel_transposed(weights + group * filters * depth, depth, depth, filters, panel, packed);
                       }});
}

/// One row or column of input pixels that are `stride` apart and so are read by the same taps: pixel
/// offset + stride*i is read by tap taps[j] at output place i + at[j].
struct PixelClass {
  std::int64_t offset, stride, pixels;
  std::vector<std::int64_t> taps, at;
};

PixelClass pixel_class(std::int64_t offset, std::int64_t size, std::int64_t kernel, std::int64_t stride,
                       std::int64_t padding, std::int64_t dilation) {
  PixelClass result{offset, stride, (size - offset + stride - 1) / stride, {}, {}};
  for (std::int64_t tap = kernel - 1; tap >= 0; --tap) {
    const std::int64_t at = offset + padding - tap * dilation;
    if (at % stride != 0) continue;
    result.taps.push_back(tap);
    result.at.push_back(at / stride);
  }
  return result;
}

/// The gradient of one class of pixels: a convolution of dy, of stride 1, with those taps that read the class, turned
/// round. With a stride of 1 there is one class and every tap reads it.
template <class T>
void backward_data_class(const Tensor& dy, const Tensor& w, std::int64_t groups, const PixelClass& rows,
                         const PixelClass& columns, const Tensor& dx) {
  const std::int64_t filters = w.size(0) / groups, channels = w.size(1), kernel = w.size(2) * w.size(3);
  Patches<T> patches{dy.data<T>(), dy.size(2), dy.size(3), dy.size(1), filters, rows.pixels, columns.pixels, 1, {}};
  std::vector<std::int64_t> taps;
  for (std::size_t r = 0; r < rows.taps.size(); ++r) {
    for (std::size_t s = 0; s < columns.taps.size(); ++s) {
      patches.add_tap(rows.at[r], columns.at[s]);
      taps.push_back(rows.taps[r] * w.size(3) + columns.taps[s]);
    }
  }
  const T* weights = w.data<T>();
  multiply_patches<T>({.patches = patches,
                       .images = dx.size(0),
                       .groups = groups,
                       .columns = channels,
                       .out = writable<T>(dx),
                       .out_height = dx.size(2),
                       .out_width = dx.size(3),
                       .out_offset = {rows.offset, columns.offset},
                       .out_stride = {rows.stride, columns.stride},
                       .bias = nullptr,
                       .pack_panel = [=](std::int64_t group, std::int64_t panel, T* packed) {
                         for (const std::int64_t tap : taps) {
                           const T* first = weights + (group * filters * kernel + tap) * channels;
                           pack_panel(first, kernel * channels, filters, channels, panel, packed);
                           packed += filters * Tile<T>::kWidth;
                         }
                       }});
}

template <class T> void backward_data(const Tensor& dy, const Tensor& w, const Conv2dOptions& o, const Tensor& dx) {
  for (std::int64_t h = 0; h < std::min(o.stride.h, dx.size(2)); ++h) {
    const PixelClass rows = pixel_class(h, dx.size(2), w.size(2), o.stride.h, o.padding.h, o.dilation.h);
    for (std::int64_t v = 0; v < std::min(o.stride.w, dx.size(3)); ++v) {
      const PixelClass columns = pixel_class(v, dx.size(3), w.size(3), o.stride.w, o.padding.w, o.dilation.w);
      backward_data_class<T>(dy, w, o.groups, rows, columns, dx);
    }
  }
}

template <class T>
void backward_filter(const Tensor& dy, const Tensor& x, const Conv2dOptions& o, const Tensor& dw, bool accumulate) {
  patch_gradient<T>({.patches = forward_patches<T>(x, dw.shape(), dy.shape(), o),
                     .images = x.size(0),
                     .groups = o.groups,
                     .dy = dy.data<T>(),
                     .filters = dw.size(0) / o.groups,
                     .out = writable<T>(dw),
                     .accumulate = accumulate});
}

void set_used(const Conv2dOptions& o, ConvPass pass, bool depthwise) {
  if (o.choice) o.choice->set_used(pass, depthwise ? "depthwise" : "im2col");
}

}  // namespace

void register_conv(Kernels& k) {
  k.conv2d = [](const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2dOptions& o, bool relu,
                const Tensor& y) {
    dispatch_floating("conv2d", x, [&](auto type) {
      using T = decltype(type);
      set_used(o, ConvPass::forward, is_depthwise(w, o));
      const Tensor out = nhwc_scratch(y);
      if (is_depthwise(w, o)) {
        depthwise_forward<T>(to_nhwc(x), to_nhwc(w), bias, o, out);
      } else {
        forward<T>(to_nhwc(x), to_nhwc(w), bias, o, out);
      }
      if (relu) cpu::relu(out, std::numeric_limits<double>::infinity(), out);
      from_nhwc(out, y);
    });
  };
  k.conv2d_backward_data = [](const Tensor& dy, const Tensor& w, const Conv2dOptions& o, const Tensor& dx) {
    dispatch_floating("conv2d_backward_data", dy, [&](auto type) {
      using T = decltype(type);
      set_used(o, ConvPass::backward_data, is_depthwise(w, o));
      const Tensor out = nhwc_scratch(dx);
      if (is_depthwise(w, o)) {
        depthwise_backward_data<T>(to_nhwc(dy), to_nhwc(w), o, out);
      } else {
        backward_data<T>(to_nhwc(dy), to_nhwc(w), o, out);
      }
      from_nhwc(out, dx);
    });
  };
  k.conv2d_backward_filter = [](const Tensor& dy, const Tensor& x, const Conv2dOptions& o, const Tensor& dw,
                                bool accumulate) {
    dispatch_floating("conv2d_backward_filter", dy, [&](auto type) {
      using T = decltype(type);
      set_used(o, ConvPass::backward_filter, is_depthwise(dw, o));
      // An NCHW gradient that is added to is brought to NHWC with what it holds.
      const Tensor out = accumulate ? to_nhwc(dw) : nhwc_scratch(dw);
      if (is_depthwise(dw, o)) {
        depthwise_backward_filter<T>(to_nhwc(dy), to_nhwc(x), o, out, accumulate);
      } else {
        backward_filter<T>(to_nhwc(dy), to_nhwc(x), o, out, accumulate);
      }
      from_nhwc(out, dw);
    });
  };
}

}  // namespace cuttle::cpu
