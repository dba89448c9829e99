// 3x3 depthwise convolutions near memory bandwidth. A thread has four channels and a strip of columns and marches down
// the rows; every input row is loaded and converted once and used at once for the three output rows that it touches.
#include "cuda/conv/depthwise.cuh"

namespace cuttle::cuda::depthwise {

namespace {

constexpr int kBlock = 128;

/// Where a thread works.
struct Place {
  int channel, strip, chunk, image;
};

/// False for threads beyond the end.
__device__ inline bool place_of(const Sizes& z, const March& m, Place& place) {
  std::int64_t i = blockIdx.x * std::int64_t{kBlock} + threadIdx.x;
  const int fours = z.c / 4;
  place.channel = static_cast<int>(i % fours) * 4;
  i /= fours;
  place.strip = static_cast<int>(i % m.strips);
  i /= m.strips;
  place.chunk = static_cast<int>(i % m.chunks);
  i /= m.chunks;
  place.image = static_cast<int>(i);
  return i < z.n;
}

/// taps[r * 3 + s][channel] of four channels; w lies as [C,3,3].
template <bool kFlip, class T> __device__ inline void load_taps(const T* w, int channel, float (&taps)[9][4]) {
#pragma unroll
  for (int i = 0; i < 9; ++i) {
    const Four<T> four = reinterpret_cast<const Four<T>*>(w + channel * 9)[i];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const int at = i * 4 + j, tap = at % 9;
      taps[kFlip ? 8 - tap : tap][at / 9] = static_cast<float>(four.at[j]);
    }
  }
}

template <class T> __device__ inline void store(T* y, std::int64_t at, const float (&values)[4]) {
  Four<T> four;
#pragma unroll
  for (int v = 0; v < 4; ++v) four.at[v] = T(values[v]);
  *reinterpret_cast<Four<T>*>(y + at) = four;
}

/// Stride 1. With kFlip the filter is turned by 180 degrees: that is the backward pass, with padding 2 - padding.
template <class T, bool kFlip>
__global__ void __launch_bounds__(kBlock, 3)
    stride1_kernel(const T* x, const T* w, const T* bias, T* y, const Sizes z, const March m) {
  constexpr int kStrip = 4, kColumns = kStrip + 2;
  Place at;
  if (!place_of(z, m, at)) return;
  float taps[9][4], offset[4] = {};
  load_taps<kFlip>(w, at.channel, taps);
  if (bias) {
#pragma unroll
    for (int v = 0; v < 4; ++v) offset[v] = static_cast<float>(bias[at.channel + v]);
  }
  const int q0 = at.strip * kStrip, p0 = at.chunk * m.rows;
  const int count = min(m.rows, z.p - p0), steps = count + 2;
  const int h0 = p0 - z.padding_h, w0 = q0 - z.padding_w;

  // Output row p0 + i is summed up in sums[i % 3]: step k starts row k, adds to k - 1 and finishes k - 2. The two rows
  // above the chunk are summed too, from what happens to be there, and are never stored.
  float sums[3][kStrip][4] = {};
  Four<T> next[kColumns];
  load_row<kColumns>(x, at.image, h0, z.h, z.w, z.c, at.channel, w0, next);
  for (int k0 = 0; k0 < steps; k0 += 3) {
#pragma unroll
    for (int j3 = 0; j3 < 3; ++j3) {
      const int k = k0 + j3;
      if (k >= steps) break;
      Four<T> row[kColumns];
#pragma unroll
      for (int j = 0; j < kColumns; ++j) row[j] = next[j];
      if (k + 1 < steps) load_row<kColumns>(x, at.image, h0 + k + 1, z.h, z.w, z.c, at.channel, w0, next);
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        float value[4];
#pragma unroll
        for (int v = 0; v < 4; ++v) value[v] = static_cast<float>(row[j].at[v]);
#pragma unroll
        for (int s = 0; s < 3; ++s) {
          const int t = j - s;
          if (t < 0 || t >= kStrip) continue;
#pragma unroll
          for (int v = 0; v < 4; ++v) {
            float& started = sums[j3][t][v];
            started = s == 0 ? value[v] * taps[0][v] : fmaf(value[v], taps[s][v], started);
            float& middle = sums[(j3 + 2) % 3][t][v];
            middle = fmaf(value[v], taps[3 + s][v], middle);
            float& finished = sums[(j3 + 1) % 3][t][v];
            finished = fmaf(value[v], taps[6 + s][v], finished);
          }
        }
      }
      if (k < 2) continue;
      const std::int64_t to = ((std::int64_t{at.image} * z.p + p0 + k - 2) * z.q + q0) * z.c + at.channel;
#pragma unroll
      for (int t = 0; t < kStrip; ++t) {
        if (q0 + t >= z.q) break;
        float values[4];
#pragma unroll
        for (int v = 0; v < 4; ++v) values[v] = sums[(j3 + 1) % 3][t][v] + offset[v];
        store(y, to + std::int64_t{t} * z.c, values);
      }
    }
  }
}

/// Stride 2: a row of input serves at most two rows of output, and the second time it comes from the L1 cache.
template <class T>
__global__ void __launch_bounds__(kBlock)
    stride2_kernel(const T* x, const T* w, const T* bias, T* y, const Sizes z, const March m) {
  constexpr int kStrip = 2, kColumns = 2 * kStrip + 1;
  Place at;
  if (!place_of(z, m, at)) return;
  float taps[9][4], offset[4] = {};
  load_taps<false>(w, at.channel, taps);
  if (bias) {
#pragma unroll
    for (int v = 0; v < 4; ++v) offset[v] = static_cast<float>(bias[at.channel + v]);
  }
  const int q0 = at.strip * kStrip, p0 = at.chunk * m.rows, p1 = min(p0 + m.rows, z.p);
  const int w0 = 2 * q0 - z.padding_w;
  for (int p = p0; p < p1; ++p) {
    float sums[kStrip][4];
#pragma unroll
    for (int t = 0; t < kStrip; ++t) {
#pragma unroll
      for (int v = 0; v < 4; ++v) sums[t][v] = offset[v];
    }
    Four<T> rows[3][kColumns];
#pragma unroll
    for (int r = 0; r < 3; ++r) {
      load_row<kColumns>(x, at.image, 2 * p - z.padding_h + r, z.h, z.w, z.c, at.channel, w0, rows[r]);
    }
#pragma unroll
    for (int r = 0; r < 3; ++r) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        float value[4];
#pragma unroll
        for (int v = 0; v < 4; ++v) value[v] = static_cast<float>(rows[r][j].at[v]);
#pragma unroll
        for (int t = 0; t < kStrip; ++t) {
          const int s = j - 2 * t;
          if (s < 0 || s > 2) continue;
#pragma unroll
          for (int v = 0; v < 4; ++v) sums[t][v] = fmaf(value[v], taps[r * 3 + s][v], sums[t][v]);
        }
      }
    }
    const std::int64_t to = ((std::int64_t{at.image} * z.p + p) * z.q + q0) * z.c + at.channel;
#pragma unroll
    for (int t = 0; t < kStrip; ++t) {
      if (q0 + t < z.q) store(y, to + std::int64_t{t} * z.c, sums[t]);
    }
  }
}

/// Backward of stride 2. With h + padding = 2i + a, row h of dx takes dy row i through filter row 0 and dy row i - 1
/// through filter row 2 where a = 0, and dy row i through filter row 1 where a = 1; columns alike. A thread makes the
/// 2 x 2 pixels of kPairs neighbouring column pairs and marches down the row pairs.
template <class T>
__global__ void __launch_bounds__(kBlock)
    stride2_backward_kernel(const T* dy, const T* w, T* dx, const Sizes z, const March m, int row_pairs) {
  constexpr int kPairs = 2, kColumns = kPairs + 1;
  Place at;
  if (!place_of(z, m, at)) return;
  float taps[9][4];
  load_taps<false>(w, at.channel, taps);
  const int j0 = z.padding_w / 2 + at.strip * kPairs;
  const int i0 = z.padding_h / 2 + at.chunk * m.rows, i1 = z.padding_h / 2 + min((at.chunk + 1) * m.rows, row_pairs);
  Four<T> above[kColumns], here[kColumns];
  load_row<kColumns>(dy, at.image, i0 - 1, z.p, z.q, z.c, at.channel, j0 - 1, above);
  for (int i = i0; i < i1; ++i) {
    load_row<kColumns>(dy, at.image, i, z.p, z.q, z.c, at.channel, j0 - 1, here);
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      float out[2][2][4];
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        const auto right = static_cast<float>(here[pair + 1].at[v]), left = static_cast<float>(here[pair].at[v]);
        const auto right_above = static_cast<float>(above[pair + 1].at[v]);
        const auto left_above = static_cast<float>(above[pair].at[v]);
        out[0][0][v] = right * taps[0][v] + left * taps[2][v] + right_above * taps[6][v] + left_above * taps[8][v];
        out[0][1][v] = right * taps[1][v] + right_above * taps[7][v];
        out[1][0][v] = right * taps[3][v] + left * taps[5][v];
        out[1][1][v] = right * taps[4][v];
      }
#pragma unroll
      for (int a = 0; a < 2; ++a) {
        const int h = 2 * i + a - z.padding_h;
        if (h < 0 || h >= z.h) continue;
#pragma unroll
        for (int b = 0; b < 2; ++b) {
          const int column = 2 * (j0 + pair) + b - z.padding_w;
          if (column < 0 || column >= z.w) continue;
          store(dx, ((std::int64_t{at.image} * z.h + h) * z.w + column) * z.c + at.channel, out[a][b]);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kColumns; ++j) above[j] = here[j];
  }
}

/// Threads that fill the card twice over.
std::int64_t wanted_threads(const Context& context) { return std::int64_t{context.multiprocessors()} * 2 * 1024; }

unsigned blocks(const Sizes& z, const March& m) {
  return static_cast<unsigned>((m.pieces(z.n) * (z.c / 4) + kBlock - 1) / kBlock);
}

}  // namespace

template <class T>
void forward_fast(const Context& context, const Sizes& z, const T* x, const T* w, const T* bias, T* y) {
  const March m = march(z.n, z.p, z.q, z.stride_h == 1 ? 4 : 2, z.c / 4, wanted_threads(context));
  if (z.stride_h == 1) {
    stride1_kernel<T, false><<<blocks(z, m), kBlock, 0, context.stream()>>>(x, w, bias, y, z, m);
  } else {
    stride2_kernel<T><<<blocks(z, m), kBlock, 0, context.stream()>>>(x, w, bias, y, z, m);
  }
  CUTTLE_LAUNCHED("depthwise forward");
}

template <class T> void backward_data_fast(const Context& context, const Sizes& z, const T* dy, const T* w, T* dx) {
  if (z.stride_h == 1) {
    Sizes back = z;  // the same convolution from dy to dx
    back.h = z.p, back.w = z.q, back.p = z.h, back.q = z.w;
    back.padding_h = 2 - z.padding_h, back.padding_w = 2 - z.padding_w;
    const March m = march(back.n, back.p, back.q, 4, z.c / 4, wanted_threads(context));
    stride1_kernel<T, true><<<blocks(back, m), kBlock, 0, context.stream()>>>(dy, w, nullptr, dx, back, m);
  } else {
    const int row_pairs = (z.h - 1 + z.padding_h) / 2 - z.padding_h / 2 + 1;
    const int column_pairs = (z.w - 1 + z.padding_w) / 2 - z.padding_w / 2 + 1;
    const March m = march(z.n, row_pairs, column_pairs, 2, z.c / 4, wanted_threads(context));
    stride2_backward_kernel<T><<<blocks(z, m), kBlock, 0, context.stream()>>>(dy, w, dx, z, m, row_pairs);
  }
  CUTTLE_LAUNCHED("depthwise backward data");
}

#define CUTTLE_INSTANTIATE(T)                                                                 \
  template void forward_fast(const Context&, const Sizes&, const T*, const T*, const T*, T*); \
  template void backward_data_fast(const Context&, const Sizes&, const T*, const T*, T*);
CUTTLE_INSTANTIATE(float)
CUTTLE_INSTANTIATE(__half)
CUTTLE_INSTANTIATE(__nv_bfloat16)
#undef CUTTLE_INSTANTIATE

}  // namespace cuttle::cuda::depthwise
