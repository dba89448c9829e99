#include "cpu/layout.hpp"

#include <algorithm>
#include <cstring>

#include "cpu/parallel.hpp"

namespace cuttle::cpu {

namespace {

/// One square of the transposition: 16 rows of 4 bytes are whole cache lines on both sides.
constexpr std::int64_t kSquare = 16;

template <class T>
void transpose_rows(const T* in, T* out, std::int64_t rows, std::int64_t columns, std::int64_t first_row) {
  const std::int64_t last_row = std::min(first_row + kSquare, rows);
  for (std::int64_t c0 = 0; c0 < columns; c0 += kSquare) {
    const std::int64_t c1 = std::min(c0 + kSquare, columns);
    for (std::int64_t c = c0; c < c1; ++c) {
      for (std::int64_t r = first_row; r < last_row; ++r) out[c * rows + r] = in[r * columns + c];
    }
  }
}

template <class T>
void transpose_as(const void* in, void* out, std::int64_t batches, std::int64_t rows, std::int64_t columns) {
  const T* from = static_cast<const T*>(in);
  T* to = static_cast<T*>(out);
  const std::int64_t bands = (rows + kSquare - 1) / kSquare;
  const std::int64_t grain = std::max<std::int64_t>(1, 16384 / (kSquare * columns));
  parallel_for(batches * bands, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t matrix = i / bands * rows * columns;
      transpose_rows(from + matrix, to + matrix, rows, columns, i % bands * kSquare);
    }
  });
}

bool is_permuted(const Tensor& t) { return t.defined() && t.rank() == 4 && t.layout() == Layout::nchw; }

}  // namespace

void transpose(const void* in, void* out, std::size_t element_size, std::int64_t batches, std::int64_t rows,
               std::int64_t columns) {
  if (rows == 1 || columns == 1) {
    std::memcpy(out, in, static_cast<std::size_t>(batches * rows * columns) * element_size);
    return;
  }
  switch (element_size) {
    case 1: return transpose_as<std::uint8_t>(in, out, batches, rows, columns);
    case 2: return transpose_as<std::uint16_t>(in, out, batches, rows, columns);
    case 4: return transpose_as<std::uint32_t>(in, out, batches, rows, columns);
    default: return transpose_as<std::uint64_t>(in, out, batches, rows, columns);
  }
}

Tensor to_nhwc(const Tensor& t) {
  if (!is_permuted(t)) return t;
  Tensor copy = nhwc_scratch(t);
  transpose(t.raw_data(), copy.raw_mutable_data(), size_of(t.dtype()), t.size(0), t.size(1), t.size(2) * t.size(3));
  return copy;
}

Tensor nhwc_scratch(const Tensor& like) {
  if (!is_permuted(like)) return like;
  return Tensor::empty(like.shape(), {like.dtype(), like.device(), Layout::nhwc});
}

void from_nhwc(const Tensor& nhwc, const Tensor& out) {
  if (!is_permuted(out)) return;
  transpose(nhwc.raw_data(), out.raw_mutable_data(), size_of(out.dtype()), out.size(0), out.size(2) * out.size(3),
            out.size(1));
}

}  // namespace cuttle::cpu
