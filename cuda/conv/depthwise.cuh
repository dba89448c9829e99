#pragma once
#include "cuda/kernels/dispatch.cuh"

namespace cuttle::cuda::depthwise {

/// A depthwise convolution of NHWC tensors, one filter a channel: x[N,H,W,C], w[C,R,S], y[N,P,Q,C].
struct Sizes {
  int n, h, w, c, p, q, r, s;
  int stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w;
};

/// Whether the fast kernels take it: 3x3, stride 1 or 2, no dilation, channels in fours.
inline bool is_fast(const Sizes& z) {
  return z.r == 3 && z.s == 3 && z.dilation_h == 1 && z.dilation_w == 1 && z.stride_h == z.stride_w &&
         z.stride_h <= 2 && z.c % 4 == 0;
}

// Fast kernels (depthwise_fast.cu, depthwise_filter.cu). Pointers are aligned to four elements.
template <class T>
void forward_fast(const Context& context, const Sizes& z, const T* x, const T* w, const T* bias, T* y);
template <class T> void backward_data_fast(const Context& context, const Sizes& z, const T* dy, const T* w, T* dx);
/// dw[C,R,S] is written or added to.
template <class T>
void backward_filter_fast(const Context& context, const Sizes& z, const T* dy, const T* x, const Tensor& dw,
                          bool accumulate);

/// Four neighbouring channels, moved as one access.
template <class T> struct alignas(4 * sizeof(T)) Four { T at[4]; };

/// Columns [first, first + kColumns) of a row of [N,rows,columns,C]; zeros outside.
template <int kColumns, class T>
__device__ inline void load_row(const T* x, int image, int row, int rows, int columns, int channels, int channel,
                                int first, Four<T> (&to)[kColumns]) {
  const bool inside = row >= 0 && row < rows;
  const std::int64_t start = ((std::int64_t{image} * rows + row) * columns + first) * channels + channel;
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    const int column = first + j;
    if (inside && column >= 0 && column < columns) {
      to[j] = *reinterpret_cast<const Four<T>*>(x + start + std::int64_t{j} * channels);
    } else {
#pragma unroll
      for (int v = 0; v < 4; ++v) to[j].at[v] = T(0.0f);
    }
  }
}

/// How the work of a pass is cut: a thread has four channels and a strip of columns, and marches down a chunk of rows.
struct March {
  int strips, chunks, rows;  ///< strips of columns; chunks of so many rows
  __host__ __device__ std::int64_t pieces(int images) const { return std::int64_t{images} * chunks * strips; }
};
inline March march(int images, int rows, int columns, int strip, std::int64_t lanes, std::int64_t wanted) {
  March m{};
  m.strips = (columns + strip - 1) / strip;
  // Each chunk reads its edge again, so only as many as it takes to fill the card.
  const std::int64_t threads = images * std::int64_t{m.strips} * lanes;
  const auto most = static_cast<std::int64_t>((rows + 7) / 8);
  std::int64_t chunks = (wanted + threads - 1) / threads;
  chunks = chunks < 1 ? 1 : chunks < most ? chunks : most;
  m.rows = static_cast<int>((rows + chunks - 1) / chunks);
  m.chunks = (rows + m.rows - 1) / m.rows;
  return m;
}

}  // namespace cuttle::cuda::depthwise
