#pragma once
#include <string>
#include <vector>

#include "cuda/gpu.hpp"
#include "support/cpu_kernel_util.hpp"

/// One call on both devices: the CPU's kernels, which have tests of their own, say what is right.
namespace cuttle::test {

using testing::gpu;

inline const Kernels& on_gpu() { return testing::gpu_backend().kernels; }

/// What a kernel test runs over: tensors that start `offset` rows into their storage, where rows of odd length make
/// addresses that are multiples of nothing.
struct Variant {
  DType dtype;
  Layout layout;
  std::int64_t offset;

  std::string str() const {
    return std::string(name_of(dtype)) + " " + std::string(name_of(layout)) + (offset == 0 ? "" : " from row 1");
  }
};

inline std::vector<Variant> variants(bool with_layouts) {
  std::vector<Variant> all;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
      if (layout == Layout::nchw && !with_layouts) continue;
      for (const std::int64_t offset : {0, 1}) all.push_back({dtype, layout, offset});
    }
  }
  return all;
}

/// The same tensor on the GPU, `offset` rows into a larger one.
inline Tensor upload(const Tensor& host, std::int64_t offset = 0) {
  if (offset == 0 || host.rank() == 0) return host.to(gpu());
  std::vector<std::int64_t> sizes(host.shape().begin(), host.shape().end());
  const std::int64_t rows = sizes[0];
  sizes[0] += offset;
  const Tensor base = Tensor::empty(Shape(std::span<const std::int64_t>(sizes)), {host.dtype(), gpu(), host.layout()});
  Tensor slice = base.slice(offset, offset + rows);
  slice.copy_(host);
  return slice;
}

/// An output for a kernel, full of a value that no result contains.
inline Tensor output(const Shape& shape, DType dtype, Layout layout = Layout::nhwc, std::int64_t offset = 0) {
  return upload(Tensor::full(shape, 77, {dtype, kCpu, layout}), offset);
}

/// Values on the CPU, rounded to a dtype.
inline Tensor rounded(const Values& values, const Shape& shape, DType dtype, Layout layout = Layout::nhwc) {
  return tensor<double>(values, shape, layout).to(dtype);
}

inline Values from(const Tensor& t) { return t.to_vector<double>(); }

/// Half a unit of the last place, as a fraction: what one rounding to the dtype may cost.
inline double rounding(DType dtype) { return dtype == DType::f16 ? 0x1p-11 : dtype == DType::bf16 ? 0x1p-8 : 0x1p-24; }

/// Largest difference of results from exact ones, over what rounding once and arithmetic in f32 may cost: at most 1.
inline double excess(const Tensor& actual, const Values& exact) {
  return error_of(from(actual), exact, 1) / (largest(exact) * (rounding(actual.dtype()) + 1e-6) + 1e-30);
}

}  // namespace cuttle::test
