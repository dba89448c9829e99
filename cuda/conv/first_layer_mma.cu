#include "cuda/conv/first_layer.cuh"

// On tensor cores a warp multiplies dy^T [channels x 16 pixels] by the patches [16 pixels x taps]. Its lanes load both
// straight into the registers where the instruction wants them (PTX ISA, "Matrix fragments for mma.m16n8k16"): the
// order of pixels in a sum and of channels in a tile is free, and is chosen so that lane 4 g + t has four neighbouring
// pixels from 4 t on, and of each a vector of channels from g * kVector on.
namespace cuttle::cuda::first_layer {

namespace {

constexpr int kMaxChunk = 16, kPixels = 4, kVector = 4;
constexpr int kRows = kVector / 2;  ///< tiles of 16 channels

template <class T> __device__ unsigned pack(T low, T high) {
  const Chunk<T, 2> pair{{low, high}};
  return reinterpret_cast<const unsigned&>(pair);
}

/// sums[16 x 8] += a[16 x 16] b[16 x 8]
__device__ inline void multiply(float* sums, const unsigned (&a)[4], const unsigned (&b)[2], __half) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ inline void multiply(float* sums, const unsigned (&a)[4], const unsigned (&b)[2], __nv_bfloat16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// What a lane loads for one chunk.
template <class T, int kTiles> struct Loaded {
  T x[kTiles][kPixels];
  Chunk<T, kVector> dy[kPixels];

  __device__ void load(const T* from_dy, const T* from_x, const Sizes& z, const Tap (&taps)[kTiles], unsigned item,
                       int pixel, int k) {
    const Place at = place_of(z, item);
#pragma unroll
    for (int j = 0; j < kPixels; ++j) dy[j] = load_gradient<kVector>(from_dy, z, at, pixel + j, k);
#pragma unroll
    for (int n = 0; n < kTiles; ++n) taps[n].load(from_x, z, at, pixel, x[n]);
  }
};

/// kTiles: of 8 taps.
template <class T, int kTiles>
__global__ void __launch_bounds__(kBlock, kTiles <= 4 ? kBlocksPerMultiprocessor : 1)
    mma_kernel(const T* dy, const T* x, float* parts, const Sizes z) {
  constexpr int kSums = kRows * kTiles * 4;
  __shared__ float shared[merge_floats(kSums)];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int first = blockIdx.y * 8 * kVector, k = first + g * kVector;
  Tap taps[kTiles];
#pragma unroll
  for (int n = 0; n < kTiles; ++n) taps[n] = Tap(z, n * 8 + g);

  float sums[kSums] = {};
  Loaded<T, kTiles> next;
  const unsigned step = gridDim.x * kWarps;
  unsigned item = blockIdx.x * kWarps + warp;
  if (item < z.items) next.load(dy, x, z, taps, item, t * kPixels, k);
  for (; item < z.items; item += step) {
    unsigned a[kRows][4], b[kTiles][2];
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
      a[m][0] = pack(next.dy[0].at[2 * m], next.dy[1].at[2 * m]);
      a[m][1] = pack(next.dy[0].at[2 * m + 1], next.dy[1].at[2 * m + 1]);
      a[m][2] = pack(next.dy[2].at[2 * m], next.dy[3].at[2 * m]);
      a[m][3] = pack(next.dy[2].at[2 * m + 1], next.dy[3].at[2 * m + 1]);
    }
#pragma unroll
    for (int n = 0; n < kTiles; ++n) {
      b[n][0] = pack(next.x[n][0], next.x[n][1]);
      b[n][1] = pack(next.x[n][2], next.x[n][3]);
    }
    if (item + step < z.items) next.load(dy, x, z, taps, item + step, t * kPixels, k);
#pragma unroll
    for (int m = 0; m < kRows; ++m) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) multiply(sums + (m * kTiles + n) * 4, a[m], b[n], T{});
    }
  }

  merge_warps(sums, shared);
  if (warp == 0) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      // Rows g and g + 8 of a tile are neighbouring channels; a lane has two columns.
      const int m = i / 4 / kTiles, channel = g * kVector + 2 * m + i % 4 / 2;
      const int tap = i / 4 % kTiles * 8 + 2 * t + i % 2;
      if (tap < z.taps) shared[channel * z.taps + tap] = sums[i];
    }
  }
  write_part(shared, z, first, 8 * kVector, parts);
}

}  // namespace

Shape mma_shape(const Sizes&) { return {kMaxChunk, kVector, 8 * kVector}; }

template <class T>
void sum_by_mma(const Context& context, const Sizes& z, dim3 blocks, const T* dy, const T* x, float* parts) {
  const auto launch = [&](auto kernel) { kernel<<<blocks, kBlock, 0, context.stream()>>>(dy, x, parts, z); };
  if (z.taps <= 16) {
    launch(mma_kernel<T, 2>);
  } else if (z.taps <= 32) {
    launch(mma_kernel<T, 4>);
  } else {
    launch(mma_kernel<T, kMaxTaps / 8>);
  }
  CUTTLE_LAUNCHED("first layer backward filter");
}

template void sum_by_mma(const Context&, const Sizes&, dim3, const __half*, const __half*, float*);
template void sum_by_mma(const Context&, const Sizes&, dim3, const __nv_bfloat16*, const __nv_bfloat16*, float*);

}  // namespace cuttle::cuda::first_layer
