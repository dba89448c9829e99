#include "cpu/conv/product.hpp"

#include <algorithm>
#include <array>

#include "cpu/gemm.hpp"
#include "cpu/parallel.hpp"
#include "cuttle/tensor.hpp"

namespace cuttle::cpu {

namespace {

constexpr std::int64_t kBlockTiles = 8;   // 112 rows of 256: the block and a panel of the filters stay in 512 KiB of L2
constexpr std::int64_t kChunkRows = 128;  // of the filter gradient: 128 rows of a panel are 16 KiB, half of L1
constexpr std::int64_t kMostColumns = 320;  // of the filter gradient: 128 rows of them are 160 KiB
constexpr std::int64_t kMostParts = 16;
constexpr std::int64_t kPartBytes = std::int64_t{4} << 20;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// [0, n) in `parts` pieces whose sizes differ by no more than one `unit`.
struct Split {
  std::int64_t n, parts, unit = 1;
  std::int64_t begin(std::int64_t i) const { return std::min(n, i * ceil_div(n, unit) / parts * unit); }
  std::int64_t size(std::int64_t i) const { return begin(i + 1) - begin(i); }
};

template <class T> Tensor scratch(std::int64_t elements) { return Tensor::empty({elements}, {.dtype = dtype_of<T>}); }
template <class T> T* pointer(const Tensor& t) { return static_cast<T*>(t.raw_mutable_data()); }

/// Addresses of the output pixels of places [row, row+rows), `first` elements into each.
template <class T>
std::vector<T*> output_rows(const PatchProduct<T>& p, std::int64_t row, std::int64_t rows, std::int64_t first) {
  const std::int64_t channels = p.groups * p.columns;
  std::vector<T*> addresses;
  addresses.reserve(static_cast<std::size_t>(rows));
  for (const std::int64_t end = row + rows; row < end;) {
    const std::int64_t q = row % p.patches.places_w, line = row / p.patches.places_w;
    const std::int64_t h = p.out_offset.h + line % p.patches.places_h * p.out_stride.h;
    const std::int64_t w = p.out_offset.w + q * p.out_stride.w, image = line / p.patches.places_h;
    T* address = p.out + ((image * p.out_height + h) * p.out_width + w) * channels + first;
    const std::int64_t places = std::min(end - row, p.patches.places_w - q);
    for (std::int64_t i = 0; i < places; ++i, address += p.out_stride.w * channels) addresses.push_back(address);
    row += places;
  }
  return addresses;
}

/// One block of places times some columns of the filters of one group.
template <class T>
void multiply_block(const PatchProduct<T>& p, const T* packed, std::int64_t group, std::int64_t row, std::int64_t rows,
                    std::int64_t column, std::int64_t columns, T* block) {
  const std::int64_t depth = p.patches.depth();
  Patches<T> patches = p.patches;
  patches.images += group * patches.channels;
  const std::vector<T*> out = output_rows(p, row, rows, group * p.columns + column);
  packed += group * packed_size<T>(depth, p.columns) + column * depth;
  // At least one pass: where no tap reaches, the output is still zero plus the bias.
  const Split passes{depth, std::max<std::int64_t>(1, ceil_div(depth, kBlockDepth))};
  for (std::int64_t i = 0; i < passes.parts; ++i) {
    const std::int64_t first = passes.begin(i), size = passes.size(i);
    copy_patches(patches, row, rows, first, size, block, kBlockStride);
    Product<T> product{
        rows,       columns, size, block, packed + first * Tile<T>::kWidth, Tile<T>::kWidth, depth * Tile<T>::kWidth,
        out.data(), i > 0};
    if (p.bias && i == 0) product.bias = p.bias + group * p.columns + column;
    multiply(product);
  }
}

}  // namespace

template <class T> void multiply_patches(const PatchProduct<T>& p) {
  const std::int64_t depth = p.patches.depth(), rows = p.images * p.patches.places_h * p.patches.places_w;
  if (rows == 0) return;
  const std::int64_t panels = ceil_div(p.columns, Tile<T>::kWidth);
  const std::int64_t group_size = packed_size<T>(depth, p.columns);
  const Tensor packed = scratch<T>(std::max<std::int64_t>(1, p.groups * group_size));
  T* const filters = pointer<T>(packed);
  parallel_for(p.groups * panels, 1 + 16384 / (1 + depth * Tile<T>::kWidth), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      p.pack_panel(i / panels, i % panels, filters + i / panels * group_size + i % panels * depth * Tile<T>::kWidth);
    }
  });

  const Split row_blocks{rows, ceil_div(rows, kBlockTiles * Tile<T>::kRows), Tile<T>::kRows};
  // Columns are cut only where the rows alone do not occupy every thread: each cut copies the patches once more.
  const std::int64_t tasks = p.groups * row_blocks.parts;
  const Split column_blocks{p.columns, std::clamp<std::int64_t>(ceil_div(num_threads(), tasks), 1, panels),
                            Tile<T>::kWidth};
  parallel_for(tasks * column_blocks.parts, 1, [&](std::int64_t begin, std::int64_t end) {
    const Tensor block = scratch<T>(kBlockTiles * Tile<T>::kRows * kBlockStride);
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t c = i % column_blocks.parts, r = i / column_blocks.parts % row_blocks.parts;
      multiply_block(p, filters, i / column_blocks.parts / row_blocks.parts, row_blocks.begin(r), row_blocks.size(r),
                     column_blocks.begin(c), column_blocks.size(c), pointer<T>(block));
    }
  });
}

template <class T>
void add_parts(std::int64_t rows, std::int64_t least_rows, std::int64_t items, std::int64_t size, T* out,
               bool accumulate,
               const std::function<void(std::int64_t item, std::int64_t begin, std::int64_t end, T* sums)>& work) {
  const std::int64_t room = kPartBytes / (size * static_cast<std::int64_t>(sizeof(T)));
  const Split parts{rows, std::clamp<std::int64_t>(std::min(room, rows / least_rows), 1, kMostParts)};
  if (!accumulate) std::fill_n(out, size, T(0));
  Tensor partial;
  T* sums = out;
  if (parts.parts > 1) {
    partial = scratch<T>(parts.parts * size);
    sums = pointer<T>(partial);
    parallel_for(parts.parts * size, 65536,
                 [&](std::int64_t begin, std::int64_t end) { std::fill(sums + begin, sums + end, T(0)); });
  }
  parallel_for(parts.parts * items, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t part = i / items;
      work(i % items, parts.begin(part), parts.begin(part + 1), sums + part * size);
    }
  });
  if (parts.parts == 1) return;
  parallel_for(size, 4096, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t part = 0; part < parts.parts; ++part) {
      const T* from = sums + part * size;
      for (std::int64_t i = begin; i < end; ++i) out[i] += from[i];
    }
  });
}

template <class T> void patch_gradient(const PatchGradient<T>& g) {
  const std::int64_t depth = g.patches.depth(), rows = g.images * g.patches.places_h * g.patches.places_w;
  const Split blocks{depth, ceil_div(depth, kMostColumns), Tile<T>::kWidth};
  const auto add_block = [&](std::int64_t item, std::int64_t begin, std::int64_t end, T* sums) {
    const std::int64_t group = item / blocks.parts, block = item % blocks.parts;
    const std::int64_t column = blocks.begin(block), columns = blocks.size(block);
    // An odd number of cache lines a row, so that the rows of a panel do not meet in a few sets of L1.
    const std::int64_t line = 64 / static_cast<std::int64_t>(sizeof(T));
    const std::int64_t step = (packed_size<T>(1, columns) / line | 1) * line;
    const Tensor copy = scratch<T>(kChunkRows * step);
    T* const chunk = pointer<T>(copy);
    std::fill_n(chunk, kChunkRows * step, T(0));
    Patches<T> patches = g.patches;
    patches.images += group * patches.channels;
    std::vector<T*> out(static_cast<std::size_t>(g.filters));
    for (std::int64_t k = 0; k < g.filters; ++k) {
      out[static_cast<std::size_t>(k)] = sums + (group * g.filters + k) * depth + column;
    }
    for (std::int64_t row = begin; row < end; row += kChunkRows) {
      const std::int64_t count = std::min(kChunkRows, end - row);
      copy_patches(patches, row, count, column, columns, chunk, step);
      const T* dy = g.dy + row * g.groups * g.filters + group * g.filters;
      multiply_transposed<T>({g.filters, columns, count, dy, chunk, step, Tile<T>::kWidth, out.data(), true},
                             g.groups * g.filters);
    }
  };
  add_parts<T>(rows, kChunkRows, g.groups * blocks.parts, g.groups * g.filters * depth, g.out, g.accumulate, add_block);
}

#define CUTTLE_INSTANTIATE(T)                                                                  \
  template void multiply_patches<T>(const PatchProduct<T>&);                                   \
  template void patch_gradient<T>(const PatchGradient<T>&);                                    \
  template void add_parts<T>(std::int64_t, std::int64_t, std::int64_t, std::int64_t, T*, bool, \
                             const std::function<void(std::int64_t, std::int64_t, std::int64_t, T*)>&);
CUTTLE_INSTANTIATE(float)
CUTTLE_INSTANTIATE(double)
#undef CUTTLE_INSTANTIATE

}  // namespace cuttle::cpu
