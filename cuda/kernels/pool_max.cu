#include <cmath>

#include "cuda/kernels/pool.cuh"
#include "cuda/kernels/pool.hpp"
#include "cuda/register.hpp"

namespace cuttle::cuda {

namespace {

/// A thread takes the winners of kSize channels of one output. kWindow is the side of a square window whose loads are
/// issued together, or 0 for any window.
template <class T, class Index, int kSize, int kWindow>
__global__ void max_pool_kernel(const T* x, T* y, Index* argmax, Grid grid, Axes<WindowAxis> axes) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= grid.total) return;
  const Grid::Place at = grid.place(i);
  const WindowAxis &ah = axes.h, &aw = axes.w;
  const int rows = kWindow ? kWindow : ah.kernel, columns = kWindow ? kWindow : aw.kernel;
  const int top = at.h * ah.stride - ah.padding, left = at.w * aw.stride - aw.padding;
  const std::uint32_t chunks = grid.by_channels.divisor;
  const auto* image = reinterpret_cast<const Chunk<T, kSize>*>(x) +
                      at.image * (static_cast<std::uint32_t>(ah.input) * aw.input * chunks) + at.chunk;
  // The first place inside the image wins if nothing is larger than minus infinity.
  const int row0 = top < 0 ? (-top + ah.dilation - 1) / ah.dilation : 0;
  const int column0 = left < 0 ? (-left + aw.dilation - 1) / aw.dilation : 0;
  float best[kSize];
  int winner[kSize];
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    best[j] = -INFINITY;
    winner[j] = row0 * columns + column0;
  }
  const auto take_row = [&](int r, auto load) {
    const int h = top + r * ah.dilation;
    const bool row_inside = h >= 0 && h < ah.input;
    if (!kWindow && !row_inside) return;
    // An unrolled window reads outside places from the border, so that no branch stands between its loads.
    const std::uint32_t row = static_cast<std::uint32_t>(min(max(h, 0), ah.input - 1)) * aw.input;
#pragma unroll
    for (int s = 0; s < columns; ++s) {
      const int w = left + s * aw.dilation;
      const bool inside = row_inside && w >= 0 && w < aw.input;
      if (!kWindow && !inside) continue;
      load(r, s, inside, (row + static_cast<std::uint32_t>(min(max(w, 0), aw.input - 1))) * chunks);
    }
  };
  // As in PyTorch, the first of equals wins, and NaN wins over all.
  const auto challenge = [&](int r, int s, bool inside, const Chunk<T, kSize>& pixel) {
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      const float value = float(pixel.at[j]);
      const bool better = inside && (value > best[j] || value != value);
      best[j] = better ? value : best[j];
      winner[j] = better ? r * columns + s : winner[j];
    }
  };
  if constexpr (kWindow > 0) {
    Chunk<T, kSize> pixels[kWindow][kWindow];
    bool is_inside[kWindow][kWindow];
#pragma unroll
    for (int r = 0; r < kWindow; ++r) {
      take_row(r, [&](int row, int s, bool inside, std::uint32_t offset) {
        pixels[row][s] = image[offset];
        is_inside[row][s] = inside;
      });
    }
#pragma unroll
    for (int r = 0; r < kWindow; ++r) {
#pragma unroll
      for (int s = 0; s < kWindow; ++s) challenge(r, s, is_inside[r][s], pixels[r][s]);
    }
  } else {
    for (int r = 0; r < rows; ++r) {
      take_row(r, [&](int row, int s, bool inside, std::uint32_t offset) { challenge(row, s, inside, image[offset]); });
    }
  }
  Chunk<T, kSize> value;
  Chunk<Index, kSize> place;
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    value.at[j] = T(best[j]);
    place.at[j] = static_cast<Index>(winner[j]);
  }
  reinterpret_cast<Chunk<T, kSize>*>(y)[i] = value;
  if (argmax) reinterpret_cast<Chunk<Index, kSize>*>(argmax)[i] = place;
}

/// A thread gathers the gradient of kSize channels of one input from the few windows over it, by rising output, so that
/// every dx is written once and nothing is added atomically.
template <class T, class Index, int kSize>
__global__ void max_pool_backward_kernel(const T* dy, const Index* argmax, T* dx, Grid grid, Axes<WindowAxis> axes) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= grid.total) return;
  const Grid::Place at = grid.place(i);
  const WindowAxis &ah = axes.h, &aw = axes.w;
  const std::uint32_t chunks = grid.by_channels.divisor;
  const std::uint32_t image = at.image * (static_cast<std::uint32_t>(ah.output) * aw.output * chunks) + at.chunk;
  int p0, p1, q0, q1;
  ah.readers(at.h, p0, p1);
  aw.readers(at.w, q0, q1);
  float sum[kSize];
#pragma unroll
  for (int j = 0; j < kSize; ++j) sum[j] = 0;
  for (int p = p0; p < p1; ++p) {
    int r = at.h + ah.padding - p * ah.stride;
    if (ah.dilation > 1) {
      if (r % ah.dilation != 0) continue;
      r /= ah.dilation;
    }
    for (int q = q0; q < q1; ++q) {
      int s = at.w + aw.padding - q * aw.stride;
      if (aw.dilation > 1) {
        if (s % aw.dilation != 0) continue;
        s /= aw.dilation;
      }
      const int place = r * aw.kernel + s;
      const std::uint32_t offset = image + static_cast<std::uint32_t>(p * aw.output + q) * chunks;
      const auto gradient = reinterpret_cast<const Chunk<T, kSize>*>(dy)[offset];
      const auto winner = reinterpret_cast<const Chunk<Index, kSize>*>(argmax)[offset];
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        if (static_cast<int>(winner.at[j]) == place) sum[j] += float(gradient.at[j]);
      }
    }
  }
  Chunk<T, kSize> result;
#pragma unroll
  for (int j = 0; j < kSize; ++j) result.at[j] = T(sum[j]);
  reinterpret_cast<Chunk<T, kSize>*>(dx)[i] = result;
}

/// Calls body(Index{}) with the type of the places of a window.
template <class Body> void dispatch_index(const Pool2dOptions& options, Body&& body) {
  if (options.kernel.h * options.kernel.w <= 256) return body(std::uint8_t{});
  body(std::int32_t{});
}

template <class T, class Index, int kSize>
void launch_forward(const Context& c, const T* x, T* y, Index* argmax, const Grid& grid, const Axes<WindowAxis>& axes) {
  auto kernel = max_pool_kernel<T, Index, kSize, 0>;
  if constexpr (sizeof(Index) == 1) {
    if (axes.h.kernel == axes.w.kernel && axes.h.kernel == 2) kernel = max_pool_kernel<T, Index, kSize, 2>;
    if (axes.h.kernel == axes.w.kernel && axes.h.kernel == 3) kernel = max_pool_kernel<T, Index, kSize, 3>;
  }
  kernel<<<blocks_covering(grid.total), kThreads, 0, c.stream()>>>(x, y, argmax, grid, axes);
  CUTTLE_LAUNCHED("max_pool2d");
}

template <class T, class Index, int kSize>
void launch_backward(const Context& c, const T* dy, const Index* argmax, T* dx, const Grid& grid,
                     const Axes<WindowAxis>& axes) {
  max_pool_backward_kernel<T, Index, kSize>
      <<<blocks_covering(grid.total), kThreads, 0, c.stream()>>>(dy, argmax, dx, grid, axes);
  CUTTLE_LAUNCHED("max_pool2d backward");
}

/// Whether chunks of kSize channels may be moved as one access.
template <class T, class Index, int kSize>
bool fits(const PoolImages& images, const T* a, const T* b, const Index* argmax) {
  return images.channels % kSize == 0 && is_aligned(a, 16) && is_aligned(b, 16) &&
         is_aligned(argmax, kSize * sizeof(Index));
}

void max_pool2d(const Tensor& x, const Pool2dOptions& options, const Tensor& y, const Tensor& argmax) {
  const PoolImages images(x, y);
  const Axes<WindowAxis> axes = window_axes(images, options);
  dispatch_floating("max_pool2d", x, [&]<class T>(T) {
    dispatch_index(options, [&]<class Index>(Index) {
      Index* winners = argmax.defined() ? pointer<Index>(argmax) : nullptr;
      const bool packed = fits<T, Index, Pack<T>::kSize>(images, pointer<T>(x), pointer<T>(y), winners);
      for_image_chunks("max_pool2d", images.count, std::max(images.in_size(), images.out_size()),
                       [&](std::int64_t first, std::int64_t count) {
                         const T* from = pointer<T>(x) + first * images.in_size();
                         T* to = pointer<T>(y) + first * images.out_size();
                         Index* places = winners ? winners + first * images.out_size() : nullptr;
                         const std::int64_t size = packed ? Pack<T>::kSize : 1;
                         const Grid grid(count, images.out_height, images.out_width, images.channels / size);
                         const auto launch =
                             packed ? launch_forward<T, Index, Pack<T>::kSize> : launch_forward<T, Index, 1>;
                         launch(context(x), from, to, places, grid, axes);
                       });
    });
  });
}

void max_pool2d_backward(const Tensor& dy, const Tensor& argmax, const Pool2dOptions& options, const Tensor& dx) {
  const PoolImages images(dx, dy);
  const Axes<WindowAxis> axes = window_axes(images, options);
  dispatch_floating("max_pool2d backward", dx, [&]<class T>(T) {
    dispatch_index(options, [&]<class Index>(Index) {
      const Index* winners = pointer<Index>(argmax);
      const bool packed = fits<T, Index, Pack<T>::kSize>(images, pointer<T>(dy), pointer<T>(dx), winners);
      for_image_chunks(
          "max_pool2d backward", images.count, std::max(images.in_size(), images.out_size()),
          [&](std::int64_t first, std::int64_t count) {
            const std::int64_t size = packed ? Pack<T>::kSize : 1;
            const Grid grid(count, images.height, images.width, images.channels / size);
            const auto launch = packed ? launch_backward<T, Index, Pack<T>::kSize> : launch_backward<T, Index, 1>;
            launch(context(dx), pointer<T>(dy) + first * images.out_size(), winners + first * images.out_size(),
                   pointer<T>(dx) + first * images.in_size(), grid, axes);
          });
    });
  });
}

}  // namespace

void register_max_pool(Kernels& k) {
  k.max_pool2d = max_pool2d;
  k.max_pool2d_backward = max_pool2d_backward;
}

void register_pool(Kernels& k) {
  register_max_pool(k);
  register_avg_pool(k);
}

}  // namespace cuttle::cuda
