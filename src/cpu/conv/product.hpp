#pragma once
#include <cstdint>
#include <functional>

#include "cpu/conv/patches.hpp"

/// Convolutions and linear layers as products with a matrix of patches, from all threads. Scratch is a block a thread
/// and the packed filters. The bits of a result do not depend on the number of threads.
namespace cuttle::cpu {

/// out[place] = patches[place] * filters (+ bias), for `groups` groups of channels.
template <class T> struct PatchProduct {
  Patches<T> patches;  ///< of group 0
  std::int64_t images, groups;
  std::int64_t columns;  ///< output channels of a group

  T* out;  ///< NHWC image of out_height x out_width pixels of groups*columns channels
  std::int64_t out_height, out_width;
  Size2 out_offset, out_stride;  ///< place (p,q) is written to pixel offset + stride*(p,q)
  const T* bias;                 ///< [groups*columns], or null

  /// Packs panel `panel` of the filters of a group: depth() rows of Tile<T>::kWidth (see cpu/gemm.hpp).
  std::function<void(std::int64_t group, std::int64_t panel, T* packed)> pack_panel;
};
template <class T> void multiply_patches(const PatchProduct<T>& product);

/// out[filter][depth] (+)= sum over places of dy[place][filter] * patches[place][depth], for each group.
template <class T> struct PatchGradient {
  Patches<T> patches;  ///< of group 0
  std::int64_t images, groups;
  const T* dy;           ///< [images*places, groups*filters]
  std::int64_t filters;  ///< of a group
  T* out;                ///< [groups*filters, depth]
  bool accumulate;
};
template <class T> void patch_gradient(const PatchGradient<T>& gradient);

/// Cuts [0, rows) into at most 16 parts of at least `least_rows` and adds up what each part contributes to `size`
/// sums: work(item, begin, end, sums) adds the part's share of an item to sums[size], which start at zero. Items touch
/// disjoint sums. The parts depend on the sizes alone and are added in order.
template <class T>
void add_parts(std::int64_t rows, std::int64_t least_rows, std::int64_t items, std::int64_t size, T* out,
               bool accumulate,
               const std::function<void(std::int64_t item, std::int64_t begin, std::int64_t end, T* sums)>& work);

}  // namespace cuttle::cpu
