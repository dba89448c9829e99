#pragma once
#include <cstdint>
#include <vector>

#include "cpu/elementwise.hpp"
#include "cpu/parallel.hpp"
#include "cuttle/tensor.hpp"

/// What the kernels that treat every channel of a 4-D tensor apart have in common. They work on NHWC, where channels
/// are the columns of a matrix [N*H*W, C].
namespace cuttle::cpu {

/// C values (f32 or f64), or `fallback` C times where the tensor is undefined.
std::vector<double> channel_values(const Tensor& t, std::int64_t channels, double fallback);
/// Writes them to a tensor [C] of f32 or f64; an undefined one is left out.
void store_channel_values(const std::vector<double>& values, const Tensor& t);

/// An NHWC tensor as a matrix with as many pixels side by side in a row as fill vector registers: column c belongs to
/// channel c % C.
struct Columns {
  std::int64_t rows, cols, channels;
};
Columns columns_of(const Tensor& nhwc);

/// y = (x - center) * scale + shift with the channel's values. Subtracting first keeps the precision of channels
/// whose mean is large beside their deviation.
struct ChannelAffine {
  std::vector<double> center, scale, shift;
};

/// The channels' values once for each column.
template <class T> std::vector<T> per_column(const std::vector<double>& values, const Columns& at) {
  std::vector<T> result(static_cast<std::size_t>(at.cols));
  for (std::size_t c = 0; c < result.size(); ++c) result[c] = static_cast<T>(values[c % values.size()]);
  return result;
}

template <class In, class Out>
void affine_row(const In* __restrict x, const Out* __restrict center, const Out* __restrict scale,
                const Out* __restrict shift, Out* __restrict y, std::int64_t cols) {
  for (std::int64_t c = 0; c < cols; ++c) y[c] = (static_cast<Out>(x[c]) - center[c]) * scale[c] + shift[c];
}

template <class In, class Out> void apply_affine(const In* x, const ChannelAffine& affine, const Columns& at, Out* y) {
  const std::vector<Out> center = per_column<Out>(affine.center, at), scale = per_column<Out>(affine.scale, at),
                         shift = per_column<Out>(affine.shift, at);
  parallel_for(at.rows, row_grain(at.cols), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      affine_row(x + r * at.cols, center.data(), scale.data(), shift.data(), y + r * at.cols, at.cols);
    }
  });
}

}  // namespace cuttle::cpu
