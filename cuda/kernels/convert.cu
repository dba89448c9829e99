#include <algorithm>
#include <type_traits>

#include "cuda/kernels/cast.cuh"
#include "cuda/kernels/dispatch.cuh"
#include "cuda/kernels/elementwise.hpp"

namespace cuttle::cuda {

namespace {

/// As many elements at a time as fill 16 bytes of the wider type: both sides stay coalesced.
template <class From, class To>
inline constexpr int kCastSize = 16 / static_cast<int>(std::max(sizeof(From), sizeof(To)));

template <class From, class To, bool kAligned> __global__ void cast_kernel(const From* in, To* out, std::int64_t n) {
  constexpr int kUnroll = 4, kSize = kCastSize<From, To>;
  const std::int64_t row = std::int64_t{blockDim.x} * kSize;
  for (std::int64_t first = blockIdx.x * row * kUnroll + threadIdx.x * kSize; first < n;
       first += gridDim.x * row * kUnroll) {
    Chunk<From, kSize> from[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) from[u] = load_chunk<Chunk<From, kSize>, kAligned>(in, first + u * row, n);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      Chunk<To, kSize> to;
#pragma unroll
      for (int j = 0; j < kSize; ++j) to.at[j] = cast<To>(from[u].at[j]);
      store_chunk<kAligned>(to, out, first + u * row, n);
    }
  }
}

/// `batches` row-major matrices [rows][columns] -> [columns][rows]: NCHW -> NHWC has rows C and columns H*W, the way
/// back the reverse.
struct Matrices {
  std::int64_t batches;
  std::uint32_t rows, columns;
};

constexpr int kTile = 32, kTileRows = 8;

/// A tile of 32x32 goes through shared memory, so that both sides are read and written along their rows. The odd row
/// length spreads a column over the banks. T is any type of the elements' size.
template <class T> __global__ void transpose_kernel(const T* in, T* out, Matrices m, std::uint32_t tiles_across) {
  __shared__ T tile[kTile][kTile + 1];
  const std::uint32_t row0 = blockIdx.x / tiles_across * kTile, column0 = blockIdx.x % tiles_across * kTile;
  const std::int64_t size = std::int64_t{m.rows} * m.columns;
  for (std::int64_t b = blockIdx.y; b < m.batches; b += gridDim.y) {
    const T* from = in + b * size;
    T* to = out + b * size;
    const std::uint32_t column = column0 + threadIdx.x;
#pragma unroll
    for (int r = threadIdx.y; r < kTile; r += kTileRows) {
      if (row0 + r < m.rows && column < m.columns) {
        tile[r][threadIdx.x] = from[std::int64_t{row0 + r} * m.columns + column];
      }
    }
    __syncthreads();
    const std::uint32_t row = row0 + threadIdx.x;
#pragma unroll
    for (int c = threadIdx.y; c < kTile; c += kTileRows) {
      if (column0 + c < m.columns && row < m.rows) {
        to[std::int64_t{column0 + c} * m.rows + row] = tile[threadIdx.x][c];
      }
    }
    __syncthreads();  // before the next matrix overwrites the tile
  }
}

/// One side of the matrices is so short (the colours of an image) that tiles would be mostly empty: a thread walks
/// along it. kFewRows: it is the rows.
template <class T, bool kFewRows> __global__ void transpose_narrow_kernel(const T* in, T* out, Matrices m) {
  const std::int64_t size = std::int64_t{m.rows} * m.columns;
  const std::uint32_t few = kFewRows ? m.rows : m.columns, many = kFewRows ? m.columns : m.rows;
  for (std::int64_t b = blockIdx.y; b < m.batches; b += gridDim.y) {
    for (std::uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < many; i += gridDim.x * blockDim.x) {
      for (std::uint32_t j = 0; j < few; ++j) {
        const std::int64_t strided = b * size + std::int64_t{j} * many + i,
                           packed = b * size + std::int64_t{i} * few + j;
        out[kFewRows ? packed : strided] = in[kFewRows ? strided : packed];
      }
    }
  }
}

template <class T> void transpose(const Tensor& in, const Tensor& out) {
  const Context& c = context(out);
  constexpr std::uint32_t kNarrow = 8;
  const bool from_nhwc = in.layout() == Layout::nhwc;
  const std::int64_t channels = in.size(1), pixels = in.size(2) * in.size(3);
  // Below 2^31 - 32 a coordinate and what a tile adds to it stay in 32 bits.
  if (std::max(channels, pixels) > (std::int64_t{1} << 31) - 64) {
    throw ShapeError("convert: an image of 2^31 pixels or more has no CUDA kernel");
  }
  const Matrices m{in.size(0), static_cast<std::uint32_t>(from_nhwc ? pixels : channels),
                   static_cast<std::uint32_t>(from_nhwc ? channels : pixels)};
  const auto batches = static_cast<unsigned>(std::min<std::int64_t>(m.batches, 65535));
  const T* from = pointer<T>(in);
  T* to = pointer<T>(out);
  if (m.rows <= kNarrow || m.columns <= kNarrow) {
    const bool few_rows = m.rows <= m.columns;
    const dim3 blocks(blocks_covering(few_rows ? m.columns : m.rows), batches);
    const auto kernel = few_rows ? transpose_narrow_kernel<T, true> : transpose_narrow_kernel<T, false>;
    kernel<<<blocks, kThreads, 0, c.stream()>>>(from, to, m);
  } else {
    const std::uint32_t across = (m.columns + kTile - 1) / kTile;
    const std::int64_t tiles = std::int64_t{across} * ((m.rows + kTile - 1) / kTile);
    if (tiles >= std::int64_t{1} << 31)
      throw ShapeError("convert: an image this large has no CUDA kernel: " + in.str());
    transpose_kernel<T>
        <<<dim3(static_cast<unsigned>(tiles), batches), dim3(kTile, kTileRows), 0, c.stream()>>>(from, to, m, across);
  }
  CUTTLE_LAUNCHED("transpose");
}

void transpose(const Tensor& in, const Tensor& out) {
  switch (size_of(in.dtype())) {
    case 1: return transpose<std::uint8_t>(in, out);
    case 2: return transpose<std::uint16_t>(in, out);
    case 4: return transpose<std::uint32_t>(in, out);
    default: return transpose<std::uint64_t>(in, out);
  }
}

template <class From, class To> void cast_elements(const Tensor& in, const Tensor& out) {
  const Context& c = context(out);
  const From* from = pointer<From>(in);
  To* to = pointer<To>(out);
  const std::int64_t n = in.numel(), work = 4 * kCastSize<From, To>;
  const bool aligned =
      is_aligned(from, sizeof(From) * kCastSize<From, To>) && is_aligned(to, sizeof(To) * kCastSize<From, To>);
  const auto kernel = aligned ? cast_kernel<From, To, true> : cast_kernel<From, To, false>;
  kernel<<<blocks_for(c, (n + work - 1) / work), kThreads, 0, c.stream()>>>(from, to, n);
  CUTTLE_LAUNCHED("cast");
}

void cast_elements(const Tensor& in, const Tensor& out) {
  dispatch_any(in, [&]<class From>(From) {
    dispatch_any(out, [&]<class To>(To) {
      if constexpr (!std::is_same_v<From, To>) cast_elements<From, To>(in, out);
    });
  });
}

/// Another dtype and another order come one after the other: kernels for every pair of dtypes that do both at once
/// were a fifth of the program.
void convert(const Tensor& in, const Tensor& out) {
  const bool same_order = in.layout() == out.layout() || in.shape().is_layout_free();
  if (in.dtype() == out.dtype()) {
    if (!same_order) return transpose(in, out);
    CUTTLE_CUDA(cudaMemcpyAsync(out.raw_mutable_data(), in.raw_data(), in.nbytes(), cudaMemcpyDeviceToDevice,
                                context(out).stream()));
  } else if (same_order) {
    cast_elements(in, out);
  } else if (size_of(in.dtype()) < size_of(out.dtype())) {
    const Tensor turned = Tensor::empty(in.shape(), {in.dtype(), in.device(), out.layout()});
    transpose(in, turned);
    cast_elements(turned, out);
  } else {
    const Tensor cast = Tensor::empty(in.shape(), {out.dtype(), in.device(), in.layout()});
    cast_elements(in, cast);
    transpose(cast, out);
  }
}

}  // namespace

void register_convert(Kernels& k) { k.convert = convert; }

}  // namespace cuttle::cuda
