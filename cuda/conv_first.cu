#include <algorithm>

#include "cuda/bias.hpp"
#include "cuda/conv_runner.hpp"
#include "cuda/dispatch.cuh"

// Filter gradients of convolutions with few input channels, as first layers have: x[N,H,W,C], dy[N,P,Q,K] ->
// dw[K,R,S,C]. The matrix of patches is narrow, R*S*C "taps" wide, and dy, which is large, is read once. A lane of a
// warp has one or two channels of dy and keeps their sums over all taps in registers; a warp takes a few neighbouring
// pixels at a time and puts their patches into shared memory, from where every lane reads them.
namespace cuttle::cuda {

namespace {

constexpr int kMaxChannels = 4, kMaxTaps = 64;
constexpr int kBlock = 256, kWarps = kBlock / 32, kBlocksPerMultiprocessor = 2;
constexpr int kMaxChunk = 8;

struct Sizes {
  int h, w, c, k, p, q, r, s;
  int stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w;
  int taps;
  bool paired;           ///< two channels of dy are one access
  int chunk;             ///< pixels of a row of dy that a warp works on at once
  unsigned items;        ///< such chunks in all
  Divider chunks, rows;  ///< chunks in a row, rows in an image
};

/// What a lane loads for one chunk: its taps' place in every pixel's patch, and its channels of dy.
template <class T, int kSlots, int kPer> struct Loaded {
  T x[kSlots][kMaxChunk];
  Chunk<T, kPer> dy[kMaxChunk];
  int count;  ///< pixels
};

/// The taps of a lane: lane, lane + 32.
template <int kSlots> struct Taps {
  int down[kSlots], right[kSlots], channel[kSlots];

  __device__ Taps(const Sizes& z, int lane) {
#pragma unroll
    for (int slot = 0; slot < kSlots; ++slot) {
      const int tap = lane + slot * 32, s = tap / z.c % z.s, r = tap / z.c / z.s;
      channel[slot] = tap % z.c;
      right[slot] = s * z.dilation_w - z.padding_w;
      // Lanes without a tap are above every image.
      down[slot] = tap < z.taps ? r * z.dilation_h - z.padding_h : -(1 << 30);
    }
  }
};

template <class T, int kSlots, int kPer>
__device__ inline void load(const T* dy, const T* x, const Sizes& z, const Taps<kSlots>& taps, unsigned item, int k,
                            Loaded<T, kSlots, kPer>& to) {
  const int q0 = static_cast<int>(z.chunks.take(item)) * z.chunk, p = static_cast<int>(z.rows.take(item));
  const auto image = static_cast<std::int64_t>(item);
  to.count = min(z.chunk, z.q - q0);
  const T* pixel = dy + ((image * z.p + p) * z.q + q0) * z.k;
#pragma unroll
  for (int j = 0; j < kMaxChunk; ++j) {
    const T* channels = pixel + std::int64_t{j} * z.k;
    const int left = j < to.count ? z.k : 0;
    to.dy[j] = z.paired ? load_chunk<Chunk<T, kPer>, true>(channels, k, left)
                        : load_chunk<Chunk<T, kPer>, false>(channels, k, left);
  }
#pragma unroll
  for (int slot = 0; slot < kSlots; ++slot) {
    const int row = p * z.stride_h + taps.down[slot], column = q0 * z.stride_w + taps.right[slot];
    const bool inside = row >= 0 && row < z.h;
    const T* from = x + ((image * z.h + row) * z.w + column) * z.c + taps.channel[slot];
#pragma unroll
    for (int j = 0; j < kMaxChunk; ++j) {
      const int at = column + j * z.stride_w;
      const bool exists = inside && j < to.count && at >= 0 && at < z.w;
      to.x[slot][j] = exists ? from[std::int64_t{j} * z.stride_w * z.c] : T(0.0f);
    }
  }
}

/// parts[blockIdx.x][k][tap]: what the block's chunks add to dw of channels blockIdx.y * 32 * kPer and those after it.
/// kTaps: the taps rounded up.
template <class T, int kTaps, int kPer>
__global__ void __launch_bounds__(kBlock, kBlocksPerMultiprocessor)
    first_layer_kernel(const T* dy, const T* x, float* parts, const Sizes z) {
  constexpr int kSlots = (kTaps + 31) / 32, kSums = kPer * kTaps;
  constexpr int kPatches = kWarps * kMaxChunk * kTaps, kHalf = kWarps / 2 * kSums * 32;
  alignas(16) __shared__ float shared[kPatches > kHalf ? kPatches : kHalf];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first = blockIdx.y * 32 * kPer, k = first + lane * kPer;
  const Taps<kSlots> taps(z, lane);
  float* patches = shared + warp * kMaxChunk * kTaps;

  float sums[kPer][kTaps] = {};
  Loaded<T, kSlots, kPer> now;
  const unsigned step = gridDim.x * kWarps;
  unsigned item = blockIdx.x * kWarps + warp;
  if (item < z.items) load(dy, x, z, taps, item, k, now);
  for (; item < z.items; item += step) {
    Chunk<T, kPer> gradient[kMaxChunk];
    const int count = now.count;
#pragma unroll
    for (int j = 0; j < kMaxChunk; ++j) {
      gradient[j] = now.dy[j];
#pragma unroll
      for (int slot = 0; slot < kSlots; ++slot) {
        const int tap = lane + slot * 32;
        if (tap < kTaps) patches[j * kTaps + tap] = static_cast<float>(now.x[slot][j]);
      }
    }
    if (item + step < z.items) load(dy, x, z, taps, item + step, k, now);
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
          sums[i][t] = fmaf(value.x, d, sums[i][t]);
          sums[i][t + 1] = fmaf(value.y, d, sums[i][t + 1]);
          sums[i][t + 2] = fmaf(value.z, d, sums[i][t + 2]);
          sums[i][t + 3] = fmaf(value.w, d, sums[i][t + 3]);
        }
      }
    }
    __syncwarp();
  }

  // The upper half of the warps hands its sums to the lower one, until one warp has them all.
  __syncthreads();
#pragma unroll
  for (int half = kWarps / 2; half > 0; half /= 2) {
    float* mine = shared + warp % half * kSums * 32 + lane;
    if (warp >= half && warp < 2 * half) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) mine[i * 32] = sums[i / kTaps][i % kTaps];
    }
    __syncthreads();
    if (warp < half) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums[i / kTaps][i % kTaps] += mine[i * 32];
    }
    __syncthreads();
  }
  if (warp == 0) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      if (i % kTaps < z.taps) shared[(lane * kPer + i / kTaps) * z.taps + i % kTaps] = sums[i / kTaps][i % kTaps];
    }
  }
  __syncthreads();
  const int count = min(32 * kPer, z.k - first) * z.taps;
  float* part = parts + (std::int64_t{blockIdx.x} * z.k + first) * z.taps;
  for (int i = threadIdx.x; i < count; i += kBlock) part[i] = shared[i];
}

/// Two channels a lane, where there are more than 32 and registers for their sums.
bool has_two_channels(const Sizes& z) { return z.taps <= 28 && z.k > 32; }

template <class T, int kTaps>
void launch(const Context& context, const Sizes& z, dim3 grid, const T* dy, const T* x, float* parts) {
  if constexpr (kTaps <= 28) {
    if (has_two_channels(z)) {
      first_layer_kernel<T, kTaps, 2><<<grid, kBlock, 0, context.stream()>>>(dy, x, parts, z);
      return;
    }
  }
  first_layer_kernel<T, kTaps, 1><<<grid, kBlock, 0, context.stream()>>>(dy, x, parts, z);
}

int int_of(std::int64_t size) { return static_cast<int>(size); }

class FirstLayerRunner final : public ConvRunner {
 public:
  FirstLayerRunner(const Context& context, const ConvKey& key)
      : accumulate_(key.accumulate != 0),
        z_{int_of(key.x[2]),
           int_of(key.x[3]),
           int_of(key.x[1]),
           int_of(key.w[0]),
           int_of(key.y[2]),
           int_of(key.y[3]),
           int_of(key.w[2]),
           int_of(key.w[3]),
           int_of(key.stride[0]),
           int_of(key.stride[1]),
           int_of(key.padding[0]),
           int_of(key.padding[1]),
           int_of(key.dilation[0]),
           int_of(key.dilation[1]),
           int_of(key.w[1] * key.w[2] * key.w[3]),
           key.w[0] % 2 == 0 && static_cast<std::size_t>(key.alignment) >= 2 * size_of(key.type()),
           0,
           0,
           {},
           {}} {
    // Chunks of one length: 28 pixels are four times 7.
    std::int64_t chunks = (key.y[3] + kMaxChunk - 1) / kMaxChunk;
    const std::int64_t chunk = (key.y[3] + chunks - 1) / chunks;
    chunks = (key.y[3] + chunk - 1) / chunk;
    z_.chunk = int_of(chunk);
    z_.items = static_cast<unsigned>(key.x[0] * key.y[2] * chunks);
    z_.chunks = Divider(chunks);
    z_.rows = Divider(key.y[2]);
    const unsigned channels = has_two_channels(z_) ? 64 : 32;
    grid_.y = (static_cast<unsigned>(z_.k) + channels - 1) / channels;
    const unsigned fill = static_cast<unsigned>(context.multiprocessors()) * kBlocksPerMultiprocessor / grid_.y;
    grid_.x = std::clamp(fill, 1u, (z_.items + kWarps - 1) / kWarps);
  }

  void run(Context& context, const ConvOperands& o) const override {
    const Tensor scratch = scratch_bytes(context.index(), workspace_bytes());
    const auto parts = static_cast<float*>(scratch.raw_mutable_data());
    dispatch_floating("conv2d backward", o.a, [&]<class T>(T) {
      const T *dy = pointer<T>(o.a), *x = pointer<T>(o.b);
      if (z_.taps <= 4) return launch<T, 4>(context, z_, grid_, dy, x, parts);
      if (z_.taps <= 12) return launch<T, 12>(context, z_, grid_, dy, x, parts);
      if (z_.taps <= 28) return launch<T, 28>(context, z_, grid_, dy, x, parts);
      if (z_.taps <= 36) return launch<T, 36>(context, z_, grid_, dy, x, parts);
      launch<T, kMaxTaps>(context, z_, grid_, dy, x, parts);
    });
    CUTTLE_LAUNCHED("first layer backward filter");
    sum_parts(parts, grid_.x, o.out, accumulate_);
  }
  std::size_t workspace_bytes() const override {
    return std::size_t{grid_.x} * static_cast<std::size_t>(z_.k) * static_cast<std::size_t>(z_.taps) * sizeof(float);
  }
  std::string name() const override { return "first layer"; }

 private:
  bool accumulate_;
  Sizes z_;
  dim3 grid_;
};

}  // namespace

ConvRunnerPtr first_layer_runner(const Context& context, const ConvKey& key) {
  if (key.which() != Pass::backward_filter || key.order() != Layout::nhwc || key.groups != 1) return nullptr;
  if (key.w[1] > kMaxChannels || key.w[1] * key.w[2] * key.w[3] > kMaxTaps) return nullptr;
  // Sizes and steps must leave room in 32 bits.
  constexpr std::int64_t kMax = std::int64_t{1} << 28;
  for (int i = 0; i < 2; ++i) {
    if (key.padding[i] > kMax || key.x[2 + i] > kMax || key.y[2 + i] * key.stride[i] > kMax) return nullptr;
    if (key.w[2 + i] * key.dilation[i] > kMax) return nullptr;
  }
  if (key.w[0] > (1 << 20) || key.x[0] * key.y[2] * key.y[3] >= std::int64_t{1} << 31) return nullptr;
  auto runner = std::make_unique<FirstLayerRunner>(context, key);
  return key.fits(runner->workspace_bytes()) ? std::move(runner) : nullptr;
}

}  // namespace cuttle::cuda
