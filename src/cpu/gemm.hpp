#pragma once
#include <cstdint>

/// Matrix products for convolution and linear layers, single-threaded: the callers cut the work into tasks. Every
/// element of the result is summed in an order that depends on nothing but the depth, so however the callers cut rows
/// and columns the bits are the same. T is float or double.
namespace cuttle::cpu {

/// Shape of the register tile: kTileRows rows by two native vectors.
template <class T> struct Tile {
  static const std::int64_t kRows;   ///< rows of a full tile
  static const std::int64_t kWidth;  ///< columns of a panel: two vectors
};

/// A block of the left matrix is copied to rows of kBlockDepth elements at this distance. A constant distance lets one
/// register address all rows of a tile; the odd 16 elements keep the rows from falling on the same cache sets.
inline constexpr std::int64_t kBlockDepth = 256;
inline constexpr std::int64_t kBlockStride = kBlockDepth + 16;

/// One product c (+)= a*b (+ bias), a[rows, depth], b[depth, columns].
template <class T> struct Product {
  std::int64_t rows, columns, depth;
  const T* a;
  const T* b;  ///< panel j holds columns [j*kWidth, ...); its last vector is readable in full
  std::int64_t b_row_step, b_panel_step;
  T* const* c;              ///< address of each row
  bool add;                 ///< to what c holds
  const T* bias = nullptr;  ///< [columns], or null
};

/// a[i][k] = a[i*kBlockStride + k]: a block that was copied together.
template <class T> void multiply(const Product<T>& p);
/// a[i][k] = a[k*a_row_step + i]: a transposed matrix used where it lies.
template <class T> void multiply_transposed(const Product<T>& p, std::int64_t a_row_step);

/// Elements of a packed right matrix of this size: whole panels, the last one padded with zeros.
template <class T> std::int64_t packed_size(std::int64_t depth, std::int64_t columns);
/// Packs panel `panel` of b[k][j] = rows[k*step + j] to out[k][kWidth].
template <class T>
void pack_panel(const T* rows, std::int64_t step, std::int64_t depth, std::int64_t columns, std::int64_t panel, T* out);
/// Packs panel `panel` of b[k][j] = columns[j*step + k] to out[k][kWidth].
template <class T>
void pack_panel_transposed(const T* matrix, std::int64_t step, std::int64_t depth, std::int64_t columns,
                           std::int64_t panel, T* out);

}  // namespace cuttle::cpu
