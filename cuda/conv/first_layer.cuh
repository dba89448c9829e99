#pragma once
#include "cuda/kernels/dispatch.cuh"

/// Filter gradients of convolutions with few input channels, as first layers have: x[N,H,W,C], dy[N,P,Q,K] ->
/// dw[K,R,S,C]. The matrix of patches is narrow, R*S*C "taps" wide, and dy, which is large, is read once. A warp takes
/// a chunk of neighbouring pixels of a row at a time and keeps the sums of its channels over all taps in registers.
namespace cuttle::cuda::first_layer {

constexpr int kMaxChannels = 4, kMaxTaps = 64;
constexpr int kBlock = 256, kWarps = kBlock / 32, kBlocksPerMultiprocessor = 2;

/// One image of x or dy has less than 2^30 elements.
struct Sizes {
  int h, w, c, k, p, q, r, s;
  int stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w;
  int taps;
  bool is_vectored;      ///< dy may be read as vectors of a lane's channels
  int chunk;             ///< pixels
  unsigned items;        ///< chunks in all
  Divider chunks, rows;  ///< chunks in a row, rows in an image
};

/// What each kernel takes: pixels of a chunk, and channels of a lane and of a block.
struct Shape {
  int most_pixels, lane_channels, block_channels;
};
Shape fma_shape(const Sizes& z);
Shape mma_shape(const Sizes& z);

/// parts[blocks.x][k][tap], whose sum over the first dimension is dw; blocks.y covers the channels. On the ordinary
/// lanes in f32, or on tensor cores (f16 and bf16).
template <class T>
void sum_by_fma(const Context& c, const Sizes& z, dim3 blocks, const T* dy, const T* x, float* parts);
template <class T>
void sum_by_mma(const Context& c, const Sizes& z, dim3 blocks, const T* dy, const T* x, float* parts);

/// Where a chunk lies.
struct Place {
  std::int64_t image;
  int p, q0, count;
};
__device__ inline Place place_of(const Sizes& z, unsigned item) {
  Place at;
  at.q0 = static_cast<int>(z.chunks.take(item)) * z.chunk;
  at.p = static_cast<int>(z.rows.take(item));
  at.image = item;
  at.count = min(z.chunk, z.q - at.q0);
  return at;
}

/// The place of a tap in its patch.
struct Tap {
  int down, right, channel;

  Tap() = default;
  __device__ Tap(const Sizes& z, int tap) {
    channel = tap % z.c;
    right = tap / z.c % z.s * z.dilation_w - z.padding_w;
    // What is no tap is above every image.
    down = tap < z.taps ? tap / z.c / z.s * z.dilation_h - z.padding_h : -(1 << 30);
  }

  /// x under this tap of pixels first to first + kCount - 1 of a chunk; 0 in the padding and beyond the chunk.
  template <int kCount, class T>
  __device__ void load(const T* x, const Sizes& z, const Place& at, int first, T (&to)[kCount]) const {
    const int row = at.p * z.stride_h + down, column = (at.q0 + first) * z.stride_w + right;
    const bool inside = row >= 0 && row < z.h;
    const T* image = x + at.image * (z.h * z.w * z.c);
    const int from = ((inside ? row : 0) * z.w + column) * z.c + channel;
#pragma unroll
    for (int j = 0; j < kCount; ++j) {
      const int place = column + j * z.stride_w;
      const bool exists = inside && first + j < at.count && place >= 0 && place < z.w;
      to[j] = exists ? image[from + j * z.stride_w * z.c] : T(0.0f);
    }
  }
};

/// Channels k to k + kChannels - 1 of pixel `j` of a chunk; 0 beyond the chunk and the channels.
template <int kChannels, class T>
__device__ Chunk<T, kChannels> load_gradient(const T* dy, const Sizes& z, const Place& at, int j, int k) {
  const T* channels = dy + at.image * (z.p * z.q * z.k) + (at.p * z.q + at.q0 + j) * z.k;
  const int left = j < at.count ? z.k : 0;
  return z.is_vectored ? load_chunk<Chunk<T, kChannels>, true>(channels, k, left)
                       : load_chunk<Chunk<T, kChannels>, false>(channels, k, left);
}

constexpr int merge_floats(int sums) { return kWarps / 2 * sums * 32; }

/// Adds up the sums of a block's warps, in a fixed order, into those of warp 0. shared: merge_floats(kSums), free again
/// on return. Every thread of the block must call it.
template <int kSums> __device__ void merge_warps(float (&sums)[kSums], float* shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __syncthreads();
#pragma unroll
  for (int half = kWarps / 2; half > 0; half /= 2) {
    float* mine = shared + warp % half * kSums * 32 + lane;
    if (warp >= half && warp < 2 * half) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) mine[i * 32] = sums[i];
    }
    __syncthreads();
    if (warp < half) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums[i] += mine[i * 32];
    }
    __syncthreads();
  }
}

/// Writes the block's part from shared[channel][tap], `channels` of them from `first` on.
__device__ inline void write_part(const float* shared, const Sizes& z, int first, int channels, float* parts) {
  __syncthreads();
  const int count = min(channels, z.k - first) * z.taps;
  float* part = parts + (std::int64_t{blockIdx.x} * z.k + first) * z.taps;
  for (int i = threadIdx.x; i < count; i += kBlock) part[i] = shared[i];
}

}  // namespace cuttle::cuda::first_layer
