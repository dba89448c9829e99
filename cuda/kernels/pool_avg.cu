#include "cuda/kernels/pool.cuh"
#include "cuda/kernels/pool.hpp"
#include "cuda/kernels/reduce.cuh"

namespace cuttle::cuda {

namespace {

/// A thread averages kSize channels of one output.
template <class T, int kSize, class Axis> __global__ void average_kernel(const T* x, T* y, Grid grid, Axes<Axis> axes) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= grid.total) return;
  const Grid::Place at = grid.place(i);
  const std::uint32_t chunks = grid.by_channels.divisor, width = axes.w.input;
  const auto* image =
      reinterpret_cast<const Chunk<T, kSize>*>(x) + at.image * (axes.h.input * width * chunks) + at.chunk;
  int top, bottom, row_divisor, left, right, column_divisor;
  axes.h.window(at.h, top, bottom, row_divisor);
  axes.w.window(at.w, left, right, column_divisor);
  float sum[kSize];
#pragma unroll
  for (int j = 0; j < kSize; ++j) sum[j] = 0;
  for (int h = top; h < bottom; ++h) {
#pragma unroll 4
    for (int w = left; w < right; ++w) {
      const Chunk<T, kSize> pixel = image[(h * width + w) * chunks];
#pragma unroll
      for (int j = 0; j < kSize; ++j) sum[j] += float(pixel.at[j]);
    }
  }
  const float factor = 1.0f / (float(row_divisor) * float(column_divisor));
  Chunk<T, kSize> result;
#pragma unroll
  for (int j = 0; j < kSize; ++j) result.at[j] = T(sum[j] * factor);
  reinterpret_cast<Chunk<T, kSize>*>(y)[i] = result;
}

/// A thread gathers the gradient of kSize channels of one input from the windows over it.
template <class T, int kSize, class Axis>
__global__ void average_backward_kernel(const T* dy, T* dx, Grid grid, Axes<Axis> axes) {
  const std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= grid.total) return;
  const Grid::Place at = grid.place(i);
  const std::uint32_t chunks = grid.by_channels.divisor, width = axes.w.output;
  const auto* image =
      reinterpret_cast<const Chunk<T, kSize>*>(dy) + at.image * (axes.h.output * width * chunks) + at.chunk;
  int p0, p1, q0, q1, first, end, row_divisor, column_divisor;
  axes.h.readers(at.h, p0, p1);
  axes.w.readers(at.w, q0, q1);
  float sum[kSize];
#pragma unroll
  for (int j = 0; j < kSize; ++j) sum[j] = 0;
  for (int p = p0; p < p1; ++p) {
    axes.h.window(p, first, end, row_divisor);
    for (int q = q0; q < q1; ++q) {
      axes.w.window(q, first, end, column_divisor);
      const float factor = 1.0f / (float(row_divisor) * float(column_divisor));
      const Chunk<T, kSize> gradient = image[(p * width + q) * chunks];
#pragma unroll
      for (int j = 0; j < kSize; ++j) sum[j] += float(gradient.at[j]) * factor;
    }
  }
  Chunk<T, kSize> result;
#pragma unroll
  for (int j = 0; j < kSize; ++j) result.at[j] = T(sum[j]);
  reinterpret_cast<Chunk<T, kSize>*>(dx)[i] = result;
}

constexpr int kLanes = 32, kPixelsAtOnce = 8;

/// The average of whole NHWC images: of a block of 32 x 8 threads, eight share the pixels of a chunk of channels.
template <class T, int kSize>
__global__ void average_image_kernel(const T* x, T* y, std::uint32_t pixels, std::uint32_t chunks,
                                     std::uint32_t blocks_an_image) {
  __shared__ float sums[kPixelsAtOnce][kSize][kLanes];
  const std::int64_t image = blockIdx.x / blocks_an_image;
  const std::uint32_t chunk = blockIdx.x % blocks_an_image * kLanes + threadIdx.x;
  float sum[kSize];
#pragma unroll
  for (int j = 0; j < kSize; ++j) sum[j] = 0;
  if (chunk < chunks) {
    const auto* from = reinterpret_cast<const Chunk<T, kSize>*>(x) + image * pixels * chunks + chunk;
#pragma unroll 4
    for (std::uint32_t i = threadIdx.y; i < pixels; i += kPixelsAtOnce) {
      const Chunk<T, kSize> pixel = from[std::int64_t{i} * chunks];
#pragma unroll
      for (int j = 0; j < kSize; ++j) sum[j] += float(pixel.at[j]);
    }
  }
#pragma unroll
  for (int j = 0; j < kSize; ++j) sums[threadIdx.y][j][threadIdx.x] = sum[j];
  __syncthreads();
  if (threadIdx.y != 0 || chunk >= chunks) return;
  Chunk<T, kSize> result;
#pragma unroll
  for (int j = 0; j < kSize; ++j) {
    float total = 0;
#pragma unroll
    for (int i = 0; i < kPixelsAtOnce; ++i) total += sums[i][j][threadIdx.x];
    result.at[j] = T(total / float(pixels));
  }
  reinterpret_cast<Chunk<T, kSize>*>(y)[image * chunks + chunk] = result;
}

/// The same of images of one channel: a warp to each.
template <class T> __global__ void average_plane_kernel(const T* x, T* y, std::int64_t images, std::uint32_t pixels) {
  const unsigned lane = threadIdx.x % kWarp;
  for (std::int64_t image = grid_index() / kWarp; image < images; image += grid_step() / kWarp) {
    float sum = 0;
    for (std::uint32_t i = lane; i < pixels; i += kWarp) sum += float(x[image * pixels + i]);
    sum = warp_sum(sum);
    if (lane == 0) y[image] = T(sum / float(pixels));
  }
}

/// Whether chunks of 16 bytes of channels may be moved as one access.
template <class T> bool fits(const PoolImages& images, const T* a, const T* b) {
  return images.channels % Pack<T>::kSize == 0 && is_aligned(a, 16) && is_aligned(b, 16);
}

template <class T> void average_images(const PoolImages& images, const Tensor& x, const Tensor& y) {
  const Context& c = context(x);
  const T* from = pointer<T>(x);
  T* to = pointer<T>(y);
  const auto pixels = static_cast<std::uint32_t>(images.height * images.width);
  if (images.channels == 1) {
    const unsigned blocks = blocks_for(c, images.count, kThreads / kWarp);
    average_plane_kernel<T><<<blocks, kThreads, 0, c.stream()>>>(from, to, images.count, pixels);
  } else {
    const bool packed = fits(images, from, to);
    const auto chunks = static_cast<std::uint32_t>(images.channels / (packed ? Pack<T>::kSize : 1));
    const std::uint32_t blocks_an_image = (chunks + kLanes - 1) / kLanes;
    const auto kernel = packed ? average_image_kernel<T, Pack<T>::kSize> : average_image_kernel<T, 1>;
    kernel<<<static_cast<unsigned>(images.count * blocks_an_image), dim3(kLanes, kPixelsAtOnce), 0, c.stream()>>>(
        from, to, pixels, chunks, blocks_an_image);
  }
  CUTTLE_LAUNCHED("global_avg_pool2d");
}

template <class T, class Axis>
void average(const PoolImages& images, const Axes<Axis>& axes, const Tensor& x, const Tensor& y) {
  const Context& c = context(x);
  const bool packed = fits(images, pointer<T>(x), pointer<T>(y));
  const std::int64_t chunks = images.channels / (packed ? Pack<T>::kSize : 1);
  const auto kernel = packed ? average_kernel<T, Pack<T>::kSize, Axis> : average_kernel<T, 1, Axis>;
  for_image_chunks("avg_pool2d", images.count, std::max(images.in_size(), images.out_size()),
                   [&](std::int64_t first, std::int64_t count) {
                     const Grid grid(count, images.out_height, images.out_width, chunks);
                     kernel<<<blocks_covering(grid.total), kThreads, 0, c.stream()>>>(
                         pointer<T>(x) + first * images.in_size(), pointer<T>(y) + first * images.out_size(), grid,
                         axes);
                     CUTTLE_LAUNCHED("avg_pool2d");
                   });
}

template <class T, class Axis>
void average_backward(const PoolImages& images, const Axes<Axis>& axes, const Tensor& dy, const Tensor& dx) {
  const Context& c = context(dx);
  const bool packed = fits(images, pointer<T>(dy), pointer<T>(dx));
  const std::int64_t chunks = images.channels / (packed ? Pack<T>::kSize : 1);
  const auto kernel = packed ? average_backward_kernel<T, Pack<T>::kSize, Axis> : average_backward_kernel<T, 1, Axis>;
  for_image_chunks("avg_pool2d backward", images.count, std::max(images.in_size(), images.out_size()),
                   [&](std::int64_t first, std::int64_t count) {
                     const Grid grid(count, images.height, images.width, chunks);
                     kernel<<<blocks_covering(grid.total), kThreads, 0, c.stream()>>>(
                         pointer<T>(dy) + first * images.out_size(), pointer<T>(dx) + first * images.in_size(), grid,
                         axes);
                     CUTTLE_LAUNCHED("avg_pool2d backward");
                   });
}

void avg_pool2d(const Tensor& x, const Pool2dOptions& options, const Tensor& y) {
  const PoolImages images(x, y);
  dispatch_floating("avg_pool2d", x, [&]<class T>(T) { average<T>(images, window_axes(images, options), x, y); });
}

void avg_pool2d_backward(const Tensor& dy, const Pool2dOptions& options, const Tensor& dx) {
  const PoolImages images(dx, dy);
  dispatch_floating("avg_pool2d backward", dx,
                    [&]<class T>(T) { average_backward<T>(images, window_axes(images, options), dy, dx); });
}

void adaptive_avg_pool2d(const Tensor& x, const Tensor& y) {
  const PoolImages images(x, y);
  dispatch_floating("adaptive_avg_pool2d", x, [&]<class T>(T) {
    // Threads for outputs alone would be too few to fill the card. (An image too large for that kernel is refused
    // below.)
    const bool whole = images.out_height * images.out_width == 1;
    if (whole && images.height * images.width < std::int64_t{1} << 31) return average_images<T>(images, x, y);
    average<T>(images, adaptive_axes(images), x, y);
  });
}

void adaptive_avg_pool2d_backward(const Tensor& dy, const Tensor& dx) {
  const PoolImages images(dx, dy);
  dispatch_floating("adaptive_avg_pool2d backward", dx,
                    [&]<class T>(T) { average_backward<T>(images, adaptive_axes(images), dy, dx); });
}

}  // namespace

void register_avg_pool(Kernels& k) {
  k.avg_pool2d = avg_pool2d;
  k.avg_pool2d_backward = avg_pool2d_backward;
  k.adaptive_avg_pool2d = adaptive_avg_pool2d;
  k.adaptive_avg_pool2d_backward = adaptive_avg_pool2d_backward;
}

}  // namespace cuttle::cuda
