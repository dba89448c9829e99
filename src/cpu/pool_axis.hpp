#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cuttle/ops.hpp"

/// Pooling is separable in its indices: everything about windows is worked out once for each axis.
namespace cuttle::cpu {

/// What one output reads along an axis: inputs first, first + step, ... (`count` of them, all inside the image), which
/// are places first_tap, first_tap + 1, ... of its window.
struct Window {
  std::int64_t first, first_tap, count;
  double divisor;  ///< of an average along this axis
};

struct Axis {
  std::int64_t input, step;
  std::vector<Window> windows;  ///< by output position

  std::int64_t output() const { return static_cast<std::int64_t>(windows.size()); }
};

struct AxisOptions {
  std::int64_t kernel, stride, padding, dilation;
  bool count_include_pad;
};
Axis pooling_axis(std::int64_t input, std::int64_t output, const AxisOptions& options);
/// Window of output p is [floor(p*input/output), ceil((p+1)*input/output)).
Axis adaptive_axis(std::int64_t input, std::int64_t output);

/// An output whose window covers an input, as its place `tap`.
struct Reader {
  std::int64_t output, tap;
};

/// The axis seen from its inputs.
class Readers {
 public:
  explicit Readers(const Axis& axis);
  /// Of this input, by rising output.
  std::span<const Reader> of(std::int64_t input) const;

 private:
  std::vector<std::size_t> begin_;  ///< input + 1 of them
  std::vector<Reader> readers_;
};

/// A 4-D tensor as N images of H x W pixels of C values that lie together. An NCHW tensor is N*C images of one value a
/// pixel: pooling never mixes channels, so both layouts take the same kernel.
struct Images {
  std::int64_t count, height, width, channels;
  explicit Images(const Tensor& t);
};

}  // namespace cuttle::cpu
