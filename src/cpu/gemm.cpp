#include "cpu/gemm.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "cpu/eigen.hpp"

// GCC warns that a vector type loses its alignment as a template argument; packets are only loaded and stored here.
#pragma GCC diagnostic ignored "-Wignored-attributes"

// Why not Eigen's own product: at the shapes of convolutions (100 to 200 rows at a time, depth 9*C, 32 to 512 columns)
// it reaches 60 to 75% of a core's peak, because it repacks both sides of every tile, and im2col has copied the left
// one once already. Here the im2col copy is the only one of the left side, in the order the register tile reads it, and
// the filter is packed once a call. Vectors are Eigen's packets, so the width follows the processor.
namespace cuttle::cpu {

namespace {

using Eigen::internal::PacketBlock;
using Eigen::internal::padd;
using Eigen::internal::pload1;
using Eigen::internal::ploadu;
using Eigen::internal::pmadd;
using Eigen::internal::pset1;
using Eigen::internal::pstoreu;

template <class T> using Packet = typename Eigen::internal::packet_traits<T>::type;
template <class T> constexpr int kLanes = Eigen::internal::packet_traits<T>::size;

// Two columns of accumulators, two registers of b and one of a fill the register file: 14x2 with 32 registers, 6x2 with
// 16. Then 28 multiply-adds stand against 16 loads.
constexpr int kTileRows = EIGEN_ARCH_DEFAULT_NUMBER_OF_REGISTERS >= 32 ? 14 : 6;
constexpr int kTileVectors = 2;

/// The part of c that one tile computes: whole vectors from `column` on.
template <class T> struct Corner {
  T* const* rows;
  std::int64_t column;
  bool add;
  const T* bias;  ///< from `column` on, or null
};

/// The register tile: R rows by V vectors. a is read at [k*a_step + row*kRowStep], b at [k*b_step + column].
template <class T, int R, int V, std::int64_t kRowStep>
void multiply_tile(std::int64_t depth, const T* a, std::int64_t a_step, const T* b, std::int64_t b_step,
                   const Corner<T>& out) {
  Packet<T> sum[R][V];
  for (int j = 0; j < V; ++j) {
    const Packet<T> start = out.bias ? ploadu<Packet<T>>(out.bias + j * kLanes<T>) : pset1<Packet<T>>(T(0));
    for (int i = 0; i < R; ++i) sum[i][j] = start;
  }
  for (std::int64_t k = 0; k < depth; ++k, a += a_step, b += b_step) {
    Packet<T> right[V];
    for (int j = 0; j < V; ++j) right[j] = ploadu<Packet<T>>(b + j * kLanes<T>);
    for (int i = 0; i < R; ++i) {
      const Packet<T> left = pload1<Packet<T>>(a + i * kRowStep);
      for (int j = 0; j < V; ++j) sum[i][j] = pmadd(left, right[j], sum[i][j]);
    }
  }
  if (out.add) {
    for (int i = 0; i < R; ++i) {
      const T* to = out.rows[i] + out.column;
      for (int j = 0; j < V; ++j) sum[i][j] = padd(sum[i][j], ploadu<Packet<T>>(to + j * kLanes<T>));
    }
  }
  for (int i = 0; i < R; ++i) {
    T* to = out.rows[i] + out.column;
    for (int j = 0; j < V; ++j) pstoreu(to + j * kLanes<T>, sum[i][j]);
  }
}

template <class T>
using TileFunction = void (*)(std::int64_t, const T*, std::int64_t, const T*, std::int64_t, const Corner<T>&);

/// Tiles of 1 to kTileRows rows, so that a remainder of rows costs no more than it must.
template <class T, int V, std::int64_t kRowStep> TileFunction<T> tile_of(std::int64_t rows) {
  static constexpr auto kTiles = []<int... I>(std::integer_sequence<int, I...>) {
    return std::array<TileFunction<T>, sizeof...(I)>{multiply_tile<T, I + 1, V, kRowStep>...};
  }
  (std::make_integer_sequence<int, kTileRows>{});
  return kTiles[static_cast<std::size_t>(rows - 1)];
}

/// A tile whose last vector reaches beyond the last column: it is computed in whole vectors beside c.
template <class T>
void multiply_edge(TileFunction<T> tile, std::int64_t rows, std::int64_t width, std::int64_t depth, const T* a,
                   std::int64_t a_step, const T* b, std::int64_t b_step, const Corner<T>& out) {
  constexpr std::int64_t kWidth = kTileVectors * kLanes<T>;
  T values[kTileRows * kWidth] = {}, bias[kWidth] = {};
  T* beside[kTileRows];
  for (std::int64_t i = 0; i < rows; ++i) {
    beside[i] = values + i * kWidth;
    if (out.add) std::copy_n(out.rows[i] + out.column, width, beside[i]);
  }
  if (out.bias) std::copy_n(out.bias, width, bias);
  tile(depth, a, a_step, b, b_step, {beside, 0, out.add, bias});
  for (std::int64_t i = 0; i < rows; ++i) std::copy_n(beside[i], width, out.rows[i] + out.column);
}

template <class T, std::int64_t kRowStep> void multiply_panels(const Product<T>& p, std::int64_t a_step) {
  constexpr std::int64_t kWidth = kTileVectors * kLanes<T>;
  const std::int64_t tiles = (p.rows + kTileRows - 1) / kTileRows;
  for (std::int64_t column = 0; column < p.columns; column += kWidth) {
    const T* b = p.b + column / kWidth * p.b_panel_step;
    const std::int64_t width = std::min(p.columns - column, kWidth);
    const T* bias = p.bias ? p.bias + column : nullptr;
    // Rows are dealt out evenly: 64 rows are tiles of 13 and 12, not four of 14 and one of 8.
    for (std::int64_t t = 0; t < tiles; ++t) {
      const std::int64_t row = t * p.rows / tiles, rows = (t + 1) * p.rows / tiles - row;
      const T* a = p.a + row * kRowStep;
      const Corner<T> out{p.c + row, column, p.add, bias};
      const auto tile = width > kLanes<T> ? tile_of<T, kTileVectors, kRowStep>(rows) : tile_of<T, 1, kRowStep>(rows);
      if (width % kLanes<T> == 0) {
        tile(p.depth, a, a_step, b, p.b_row_step, out);
      } else {
        multiply_edge(tile, rows, width, p.depth, a, a_step, b, p.b_row_step, out);
      }
    }
  }
}

/// A square of kLanes x kLanes: out[k*kWidth + j] = in[j*step + k].
template <class T> void transpose_square(const T* in, std::int64_t step, T* out) {
  PacketBlock<Packet<T>, kLanes<T>> square;
  for (int j = 0; j < kLanes<T>; ++j) square.packet[j] = ploadu<Packet<T>>(in + j * step);
  ptranspose(square);
  for (int k = 0; k < kLanes<T>; ++k) pstoreu(out + k * Tile<T>::kWidth, square.packet[k]);
}

}  // namespace

template <class T> const std::int64_t Tile<T>::kRows = kTileRows;
template <class T> const std::int64_t Tile<T>::kWidth = kTileVectors* kLanes<T>;

template <class T> void multiply(const Product<T>& p) { multiply_panels<T, kBlockStride>(p, 1); }

template <class T> void multiply_transposed(const Product<T>& p, std::int64_t a_row_step) {
  multiply_panels<T, 1>(p, a_row_step);
}

template <class T> std::int64_t packed_size(std::int64_t depth, std::int64_t columns) {
  return (columns + Tile<T>::kWidth - 1) / Tile<T>::kWidth * Tile<T>::kWidth * depth;
}

template <class T>
void pack_panel(const T* rows, std::int64_t step, std::int64_t depth, std::int64_t columns, std::int64_t panel,
                T* out) {
  constexpr std::int64_t kWidth = Tile<T>::kWidth;
  const std::int64_t column = panel * kWidth, width = std::min(columns - column, kWidth);
  for (std::int64_t k = 0; k < depth; ++k, out += kWidth) {
    std::copy_n(rows + k * step + column, width, out);
    std::fill(out + width, out + kWidth, T(0));
  }
}

template <class T>
void pack_panel_transposed(const T* matrix, std::int64_t step, std::int64_t depth, std::int64_t columns,
                           std::int64_t panel, T* out) {
  constexpr std::int64_t kWidth = Tile<T>::kWidth;
  const std::int64_t column = panel * kWidth, width = std::min(columns - column, kWidth);
  const T* in = matrix + column * step;
  const std::int64_t whole_width = width / kLanes<T> * kLanes<T>, whole_depth = depth / kLanes<T> * kLanes<T>;
  for (std::int64_t k = 0; k < whole_depth; k += kLanes<T>) {
    for (std::int64_t j = 0; j < whole_width; j += kLanes<T>)
      transpose_square(in + j * step + k, step, out + k * kWidth + j);
  }
  for (std::int64_t k = 0; k < depth; ++k) {
    const std::int64_t done = k < whole_depth ? whole_width : 0;
    for (std::int64_t j = done; j < width; ++j) out[k * kWidth + j] = in[j * step + k];
    std::fill(out + k * kWidth + width, out + (k + 1) * kWidth, T(0));
  }
}

#define CUTTLE_INSTANTIATE(T)                                                                        \
  template struct Tile<T>;                                                                           \
  template void multiply<T>(const Product<T>&);                                                      \
  template void multiply_transposed<T>(const Product<T>&, std::int64_t);                             \
  template std::int64_t packed_size<T>(std::int64_t, std::int64_t);                                  \
  template void pack_panel<T>(const T*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, T*); \
  template void pack_panel_transposed<T>(const T*, std::int64_t, std::int64_t, std::int64_t, std::int64_t, T*);
CUTTLE_INSTANTIATE(float)
CUTTLE_INSTANTIATE(double)
#undef CUTTLE_INSTANTIATE

}  // namespace cuttle::cpu
