#include "cuda/conv/first_layer.cuh"

// A lane has one or two channels of dy. The patches of a chunk are put into shared memory, from where every lane reads
// them.
namespace cuttle::cuda::first_layer {

namespace {

constexpr int kMaxChunk = 8;

/// What a lane loads for one chunk: its taps (lane, lane + 32) of every pixel's patch, and its channels of dy.
template <class T, int kSlots, int kPer> struct Loaded {
  T x[kSlots][kMaxChunk];
  Chunk<T, kPer> dy[kMaxChunk];
  int count;  ///< pixels

  __device__ void load(const T* from_dy, const T* from_x, const Sizes& z, const Tap (&taps)[kSlots], unsigned item,
                       int k) {
    const Place at = place_of(z, item);
    count = at.count;
#pragma unroll
    for (int j = 0; j < kMaxChunk; ++j) dy[j] = load_gradient<kPer>(from_dy, z, at, j, k);
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) taps[slot].load(from_x, z, at, 0, x[slot]);
  }
};

/// kTaps: the taps rounded up.
template <class T, int kTaps, int kPer>
__global__ void __launch_bounds__(kBlock, kBlocksPerMultiprocessor)
    fma_kernel(const T* dy, const T* x, float* parts, const Sizes z) {
  constexpr int kSlots = (kTaps + 31) / 32, kSums = kPer * kTaps;
  constexpr int kPatches = kWarps * kMaxChunk * kTaps;
  alignas(16) __shared__ float shared[kPatches > merge_floats(kSums) ? kPatches : merge_floats(kSums)];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first = blockIdx.y * 32 * kPer, k = first + lane * kPer;
  Tap taps[kSlots];
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) taps[slot] = Tap(z, lane + slot * 32);
  float* patches = shared + warp * kMaxChunk * kTaps;

  float sums[kSums] = {};
  Loaded<T, kSlots, kPer> next;
  const unsigned step = gridDim.x * kWarps;
  unsigned item = blockIdx.x * kWarps + warp;
  if (item < z.items) next.load(dy, x, z, taps, item, k);
  for (; item < z.items; item += step) {
    Chunk<T, kPer> gradient[kMaxChunk];
    const int count = next.count;
#pragma unroll
    for (int j = 0; j < kMaxChunk; ++j) {
      gradient[j] = next.dy[j];
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        const int tap = lane + slot * 32;
        if (tap < kTaps) patches[j * kTaps + tap] = static_cast<float>(next.x[slot][j]);
      }
    }
    if (item + step < z.items) next.load(dy, x, z, taps, item + step, k);
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kMaxChunk; ++j) {
      if (j >= count) break;
      const float4* patch = reinterpret_cast<const float4*>(patches + j * kTaps);
#pragma unroll
      for (int t = 0; t < kTaps; t += 4) {
        const float4 value = patch[t / 4];
#pragma unroll
        for (int i = 0; i < kPer; ++i) {
          const float d = static_cast<float>(gradient[j].at[i]);
          float* sum = sums + i * kTaps + t;
          sum[0] = fmaf(value.x, d, sum[0]);
          sum[1] = fmaf(value.y, d, sum[1]);
          sum[2] = fmaf(value.z, d, sum[2]);
          sum[3] = fmaf(value.w, d, sum[3]);
        }
      }
    }
    __syncwarp();
  }

  merge_warps(sums, shared);
  if (warp == 0) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      if (i % kTaps < z.taps) shared[(lane * kPer + i / kTaps) * z.taps + i % kTaps] = sums[i];
    }
  }
  write_part(shared, z, first, 32 * kPer, parts);
}

/// Two channels a lane, where there are more than 32 and registers for their sums.
bool has_two_channels(const Sizes& z) { return z.taps <= 28 && z.k > 32; }

template <class T, int kTaps>
void launch(const Context& context, const Sizes& z, dim3 grid, const T* dy, const T* x, float* parts) {
  if constexpr (kTaps <= 28) {
    if (has_two_channels(z)) {
      fma_kernel<T, kTaps, 2><<<grid, kBlock, 0, context.stream()>>>(dy, x, parts, z);
      return;
    }
  }
  fma_kernel<T, kTaps, 1><<<grid, kBlock, 0, context.stream()>>>(dy, x, parts, z);
}

}  // namespace

Shape fma_shape(const Sizes& z) {
  const int channels = has_two_channels(z) ? 2 : 1;
  return {kMaxChunk, channels, 32 * channels};
}

template <class T>
void sum_by_fma(const Context& context, const Sizes& z, dim3 blocks, const T* dy, const T* x, float* parts) {
  if (z.taps <= 12) {
    launch<T, 12>(context, z, blocks, dy, x, parts);
  } else if (z.taps <= 28) {
    launch<T, 28>(context, z, blocks, dy, x, parts);
  } else if (z.taps <= 36) {
    launch<T, 36>(context, z, blocks, dy, x, parts);
  } else {
    launch<T, kMaxTaps>(context, z, blocks, dy, x, parts);
  }
  CUTTLE_LAUNCHED("first layer backward filter");
}

template void sum_by_fma(const Context&, const Sizes&, dim3, const float*, const float*, float*);

}  // namespace cuttle::cuda::first_layer
