#include <cstring>

#include "cpu/dispatch.hpp"
#include "cpu/elementwise.hpp"
#include "cpu/elementwise_cast.hpp"

namespace cuttle::cpu {
namespace {

bool same_order(const Tensor& a, const Tensor& b) {
  return a.rank() != 4 || a.layout() == b.layout() || a.size(1) == 1 || a.size(2) * a.size(3) == 1;
}

void copy(const Tensor& in, const Tensor& out) {
  const char* from = static_cast<const char*>(in.raw_data());
  char* to = static_cast<char*>(out.raw_mutable_data());
  parallel_for(static_cast<std::int64_t>(in.nbytes()), 4 * kElementGrain, [=](std::int64_t begin, std::int64_t end) {
    std::memcpy(to + begin, from + begin, static_cast<std::size_t>(end - begin));
  });
}

template <class From, class To>
void convert_in_order(const From* in, To* out, std::int64_t n) {
  parallel_for(n, kElementGrain, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) out[i] = cast<To>(in[i]);
  });
}

constexpr std::int64_t kTile = 16;  // a cache line of f32

/// out[c][r] = in[r][c] for the part of a matrix [rows, cols] that a tile covers.
template <class From, class To>
void transpose_edge(const From* in, To* out, std::int64_t rows, std::int64_t cols, std::int64_t tile_rows,
                    std::int64_t tile_cols) {
  for (std::int64_t c = 0; c < tile_cols; ++c) {
    for (std::int64_t r = 0; r < tile_rows; ++r) out[c * rows + r] = cast<To>(in[r * cols + c]);
  }
}

/// The same for a whole tile: constant bounds let the compiler keep it in vector registers.
template <class From, class To>
void transpose_tile(const From* in, To* out, std::int64_t rows, std::int64_t cols) {
  transpose_edge(in, out, rows, cols, kTile, kTile);
}

/// Each of `images` matrices [rows, cols] becomes [cols, rows].
template <class From, class To>
void convert_transposed(const From* in, To* out, std::int64_t images, std::int64_t rows, std::int64_t cols) {
  const std::int64_t strips = (rows + kTile - 1) / kTile;
  parallel_for(images * strips, row_grain(kTile * cols), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t image = i / strips * rows * cols, r = i % strips * kTile;
      const std::int64_t tile_rows = std::min(kTile, rows - r);
      for (std::int64_t c = 0; c < cols; c += kTile) {
        const std::int64_t tile_cols = std::min(kTile, cols - c);
        const From* from = in + image + r * cols + c;
        To* to = out + image + c * rows + r;
        if (tile_rows == kTile && tile_cols == kTile) {
          transpose_tile(from, to, rows, cols);
        } else {
          transpose_edge(from, to, rows, cols, tile_rows, tile_cols);
        }
      }
    }
  });
}

}  // namespace

void convert(const Tensor& in, const Tensor& out) {
  const bool in_order = same_order(in, out);
  if (in_order && in.dtype() == out.dtype()) return copy(in, out);
  dispatch_any(in, [&]<class From>(From) {
    dispatch_any(out, [&]<class To>(To) {
      const From* from = in.data<From>();
      To* to = writable<To>(out);
      if (in_order) {
        convert_in_order(from, to, in.numel());
      } else {
        const std::int64_t channels = in.size(1), pixels = in.size(2) * in.size(3);
        const bool from_nhwc = in.layout() == Layout::nhwc;
        convert_transposed(from, to, in.size(0), from_nhwc ? pixels : channels, from_nhwc ? channels : pixels);
      }
    });
  });
}

}  // namespace cuttle::cpu
