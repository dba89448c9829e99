#pragma once
#include <fmt/format.h>

#include <string>

#include "cuttle/ops.hpp"

/// Convolutions that have gone wrong somewhere: odd channels, groups, steps, edges.
namespace cuttle::testing {

struct ConvCase {
  std::int64_t n, c, h, w, k, r, s;
  Conv2dOptions o = {};

  Shape x_shape() const { return {n, c, h, w}; }
  Shape w_shape() const { return {k, c / o.groups, r, s}; }
  Shape y_shape() const {
    return {n, k, (h + 2 * o.padding.h - o.dilation.h * (r - 1) - 1) / o.stride.h + 1,
            (w + 2 * o.padding.w - o.dilation.w * (s - 1) - 1) / o.stride.w + 1};
  }
  std::string str() const {
    return fmt::format("x[{},{},{},{}] k{} {}x{} stride {},{} padding {},{} dilation {},{} groups {}", n, c, h, w, k, r,
                       s, o.stride.h, o.stride.w, o.padding.h, o.padding.w, o.dilation.h, o.dilation.w, o.groups);
  }
};

inline const ConvCase kConvCases[] = {
    {1, 1, 1, 1, 1, 1, 1},
    {4, 64, 14, 14, 128, 1, 1},
    {5, 17, 5, 5, 209, 1, 1},
    {2, 64, 9, 9, 32, 1, 1, {.stride = 2}},
    {64, 3, 32, 32, 16, 1, 1, {.stride = 2}},
    {1, 2, 9, 9, 3, 1, 1, {.stride = 3, .padding = 1}},
    {4, 1, 28, 28, 32, 3, 3, {.padding = 1}},
    {5, 3, 10, 11, 33, 3, 3, {.padding = 1}},
    {2, 64, 14, 14, 64, 3, 3, {.padding = 1}},
    {2, 40, 8, 8, 72, 3, 3, {.stride = 2, .padding = 1}},
    {1, 209, 2, 2, 209, 3, 3, {.stride = 2, .padding = 1}},
    {2, 3, 23, 21, 8, 7, 7, {.stride = 2, .padding = 3}},
    {2, 16, 12, 12, 24, 5, 5, {.padding = 2}},
    {2, 5, 12, 9, 6, 3, 3, {.padding = 2, .dilation = 2}},
    {1, 4, 13, 13, 6, 3, 3, {.stride = {2, 3}, .padding = {2, 1}, .dilation = {3, 2}}},
    {2, 5, 11, 7, 3, 5, 2, {.stride = {1, 2}, .padding = {0, 1}}},
    {2, 3, 9, 1, 4, 3, 1, {.stride = {2, 1}, .padding = {1, 0}}},
    {1, 2, 5, 5, 3, 2, 2, {.stride = 4, .padding = 1}},
    {1, 2, 3, 3, 2, 3, 3, {.padding = 3}},
    {2, 16, 6, 6, 32, 3, 3, {.padding = 1, .groups = 2}},
    {2, 6, 7, 6, 9, 3, 3, {.stride = 2, .padding = 1, .groups = 3}},
    {1, 8, 5, 5, 2, 3, 3, {.dilation = 2, .groups = 2}},
    {2, 5, 7, 6, 10, 3, 3, {.padding = 1, .groups = 5}},
};

/// Few input channels: their filter gradients have a kernel of their own.
inline const ConvCase kFirstLayerCases[] = {
    {1, 1, 1, 1, 1, 1, 1},
    {8, 1, 28, 28, 32, 3, 3, {.padding = 1}},
    {8, 3, 32, 32, 64, 3, 3, {.padding = 1}},
    {70, 3, 13, 15, 64, 3, 3, {.padding = 1}},
    {3, 3, 33, 31, 32, 3, 3, {.stride = 2, .padding = 1}},
    {2, 3, 17, 9, 96, 3, 3, {.padding = 1}},
    {2, 2, 9, 10, 7, 3, 3, {.stride = 2}},
    {3, 4, 11, 13, 64, 3, 3, {.padding = 1}},
    {3, 4, 12, 7, 33, 4, 4, {.stride = 2, .padding = 1}},
    {2, 1, 28, 28, 6, 5, 5, {.padding = 2}},
    {2, 2, 14, 19, 70, 5, 5, {.padding = 2}},
    {2, 1, 17, 23, 64, 7, 7, {.stride = 2, .padding = 3}},
    {2, 1, 20, 20, 96, 8, 8, {.padding = 3}},
    {5, 3, 8, 9, 64, 1, 1},
    {5, 4, 8, 9, 96, 1, 1, {.stride = 2}},
    {2, 3, 9, 1, 4, 3, 1, {.stride = {2, 1}, .padding = {1, 0}}},
    {1, 2, 13, 16, 34, 3, 3, {.stride = {2, 3}, .padding = {2, 1}, .dilation = {3, 2}}},
    {1, 3, 3, 3, 1, 3, 3, {.padding = 3}},
};

/// One filter a channel. Heights beyond 8 are cut into chunks by the fast kernels.
inline const ConvCase kDepthwiseCases[] = {
    {2, 32, 20, 19, 32, 3, 3, {.padding = 1, .groups = 32}},
    {2, 32, 20, 19, 32, 3, 3, {.stride = 2, .padding = 1, .groups = 32}},
    {2, 36, 21, 22, 36, 3, 3, {.stride = 2, .padding = 1, .groups = 36}},
    {3, 4, 7, 7, 4, 3, 3, {.padding = 1, .groups = 4}},
    {3, 40, 7, 7, 40, 3, 3, {.stride = 2, .padding = 1, .groups = 40}},
    {1, 144, 28, 28, 144, 3, 3, {.padding = 1, .groups = 144}},
    {2, 8, 17, 9, 8, 3, 3, {.groups = 8}},
    {2, 8, 17, 9, 8, 3, 3, {.stride = 2, .groups = 8}},
    {2, 8, 18, 10, 8, 3, 3, {.stride = 2, .groups = 8}},
    {2, 8, 9, 11, 8, 3, 3, {.padding = 2, .groups = 8}},
    {2, 8, 9, 11, 8, 3, 3, {.stride = 2, .padding = 2, .groups = 8}},
    {1, 8, 5, 6, 8, 3, 3, {.padding = 3, .groups = 8}},
    {1, 8, 5, 6, 8, 3, 3, {.stride = 2, .padding = 3, .groups = 8}},
    {1, 8, 1, 1, 8, 3, 3, {.padding = 1, .groups = 8}},
    {1, 8, 2, 1, 8, 3, 3, {.stride = 2, .padding = 1, .groups = 8}},
    {2, 17, 7, 6, 17, 3, 3, {.padding = 1, .groups = 17}},
    {1, 12, 9, 8, 12, 5, 3, {.stride = {3, 2}, .padding = {2, 1}, .dilation = {1, 2}, .groups = 12}},
    {2, 96, 8, 8, 96, 3, 3, {.padding = 2, .dilation = 2, .groups = 96}},
};

}  // namespace cuttle::testing
