#include "cuda/kernels/dispatch.cuh"
#include "cuda/kernels/elementwise.hpp"

namespace cuttle::cuda {

namespace {

constexpr int kMostChannels = 1024;  // whose constants fit in a block's shared memory

struct ImageShape {
  std::uint32_t channels, height, width;
  bool nhwc;
  Divider by_channels, by_height, by_width;
};

/// Coordinates of the elements of one image, walked in memory order.
struct Cursor {
  std::uint32_t c, h, w;

  __device__ Cursor(const ImageShape& s, std::uint32_t i) {
    if (s.nhwc) {
      c = s.by_channels.take(i);
      w = s.by_width.take(i);
      h = i;
    } else {
      w = s.by_width.take(i);
      h = s.by_height.take(i);
      c = i;
    }
  }
  __device__ void next(const ImageShape& s) {
    if (s.nhwc) {
      if (++c < s.channels) return;
      c = 0;
      if (++w < s.width) return;
      w = 0;
      ++h;
    } else {
      if (++w < s.width) return;
      w = 0;
      if (++h < s.height) return;
      h = 0;
      ++c;
    }
  }
};

/// (x/255 - mean) / stddev with the constants folded: (x - 255 mean) / (255 stddev), as on the CPU. A thread makes one
/// pack of one image; a block's threads share the constants. windows: top, left, flip of each image, or nullptr.
template <class T, bool kAligned>
__global__ void normalize_kernel(const std::uint8_t* images, const float* mean, const float* stddev,
                                 const std::int32_t* windows, T* out, ImageShape s, std::int64_t count) {
  constexpr int kSize = Pack<T>::kSize;
  extern __shared__ float2 constants[];
  for (std::uint32_t c = threadIdx.x; c < s.channels; c += blockDim.x) {
    constants[c] = {float(255.0 * mean[c]), float(1 / (255.0 * stddev[c]))};
  }
  __syncthreads();
  const std::uint32_t size = s.channels * s.height * s.width;
  const std::uint32_t first = (blockIdx.x * blockDim.x + threadIdx.x) * kSize;
  if (first >= size) return;
  for (std::int64_t n = blockIdx.y; n < count; n += gridDim.y) {
    const std::uint8_t* image = images + n * size;
    int top = 0, left = 0;
    bool flip = false;
    if (windows) {
      top = windows[3 * n];
      left = windows[3 * n + 1];
      flip = windows[3 * n + 2] != 0;
    }
    Chunk<std::uint8_t, kSize> pixels;
    if (!windows) pixels = load_chunk<Chunk<std::uint8_t, kSize>, kAligned>(image, first, size);
    Cursor at(s, first);
    Pack<T> result;
#pragma unroll
    for (int j = 0; j < kSize; ++j) {
      if (first + j >= size) break;
      float pixel;
      if (windows) {
        const std::int64_t row = std::int64_t{at.h} + top;
        const std::int64_t column = std::int64_t{flip ? s.width - 1 - at.w : at.w} + left;
        const bool inside = row >= 0 && row < s.height && column >= 0 && column < s.width;
        const std::uint32_t h = static_cast<std::uint32_t>(row), w = static_cast<std::uint32_t>(column);
        const std::uint32_t source =
            s.nhwc ? (h * s.width + w) * s.channels + at.c : (at.c * s.height + h) * s.width + w;
        pixel = inside ? float(image[source]) : 0.0f;
      } else {
        pixel = float(pixels.at[j]);
      }
      const float2 constant = constants[at.c];
      result.at[j] = T((pixel - constant.x) * constant.y);
      at.next(s);
    }
    store_chunk<kAligned>(result, out + n * size, first, size);
  }
}

void normalize_images(const Tensor& images, const Tensor& mean, const Tensor& stddev, const Tensor& windows,
                      const Tensor& out) {
  const Context& c = context(out);
  const std::int64_t count = images.size(0), size = images.numel() / count;
  if (images.size(1) > kMostChannels || size >= std::int64_t{1} << 31) {
    throw ShapeError("normalize_images: more than 1024 channels or 2^31 values an image have no CUDA kernel, and got " +
                     images.str());
  }
  const ImageShape shape{static_cast<std::uint32_t>(images.size(1)),
                         static_cast<std::uint32_t>(images.size(2)),
                         static_cast<std::uint32_t>(images.size(3)),
                         images.layout() == Layout::nhwc,
                         Divider(images.size(1)),
                         Divider(images.size(2)),
                         Divider(images.size(3))};
  dispatch_floating("normalize_images", out, [&]<class T>(T) {
    constexpr int kSize = Pack<T>::kSize;
    const bool aligned =
        is_aligned(images.raw_data(), kSize) && is_aligned(out.raw_data(), 16) && (count == 1 || size % kSize == 0);
    const dim3 blocks(blocks_covering((size + kSize - 1) / kSize),
                      static_cast<unsigned>(count < 65535 ? count : 65535));
    const auto kernel = aligned ? normalize_kernel<T, true> : normalize_kernel<T, false>;
    kernel<<<blocks, kThreads, shape.channels * sizeof(float2), c.stream()>>>(
        pointer<std::uint8_t>(images), pointer<float>(mean), pointer<float>(stddev),
        windows.defined() ? pointer<std::int32_t>(windows) : nullptr, pointer<T>(out), shape, count);
  });
  CUTTLE_LAUNCHED("normalize_images");
}

}  // namespace

void register_images(Kernels& k) { k.normalize_images = normalize_images; }

}  // namespace cuttle::cuda
