#include "cuda/kernels/elementwise.hpp"

#include <cmath>
#include <limits>

#include "cuda/kernels/map.cuh"
#include "cuda/register.hpp"

namespace cuttle::cuda {

namespace {

/// Every element becomes `value`, or *scalar where that is given.
template <class T, bool kAligned> __global__ void fill_kernel(T* out, std::int64_t n, T value, const T* scalar) {
  if (scalar) value = *scalar;
  Pack<T> pack;
#pragma unroll
  for (int j = 0; j < Pack<T>::kSize; ++j) pack.at[j] = value;
  for (std::int64_t i = grid_index() * Pack<T>::kSize; i < n; i += grid_step() * Pack<T>::kSize) {
    store_chunk<kAligned>(pack, out, i, n);
  }
}

template <class T> void fill_with(const Tensor& out, T value, const T* scalar) {
  const Context& c = context(out);
  T* to = pointer<T>(out);
  const std::int64_t n = out.numel();
  const unsigned blocks = blocks_for(c, (n + Pack<T>::kSize - 1) / Pack<T>::kSize);
  if (is_aligned(to, 16)) {
    fill_kernel<T, true><<<blocks, kThreads, 0, c.stream()>>>(to, n, value, scalar);
  } else {
    fill_kernel<T, false><<<blocks, kThreads, 0, c.stream()>>>(to, n, value, scalar);
  }
  CUTTLE_LAUNCHED("fill");
}

void fill(const Tensor& out, double value) {
  dispatch_any(out, [&]<class T>(T) {
    // 16-bit elements are rounded by way of f32, as the CPU does.
    if constexpr (sizeof(T) == 2) {
      fill_with<T>(out, T(static_cast<float>(value)), nullptr);
    } else {
      fill_with<T>(out, static_cast<T>(value), nullptr);
    }
  });
}

void broadcast(const Tensor& scalar, const Tensor& out) {
  dispatch_floating("broadcast", out, [&]<class T>(T) { fill_with<T>(out, T(0.0f), pointer<T>(scalar)); });
}

struct Add {
  __device__ float operator()(float a, float b) const { return a + b; }
};

void add(const Tensor& a, const Tensor& b, const Tensor& out) {
  dispatch_floating("add", a, [&]<class T>(T) {
    map<T, 2>(context(a), {{pointer<T>(a), pointer<T>(b)}}, pointer<T>(out), out.numel(), Add{});
  });
}

struct Scale {
  float factor;
  __device__ float operator()(float x) const { return x * factor; }
};

void scale(const Tensor& x, double factor, const Tensor& out) {
  dispatch_floating("mul", x, [&]<class T>(T) {
    map<T, 1>(context(x), {{pointer<T>(x)}}, pointer<T>(out), out.numel(), Scale{static_cast<float>(factor)});
  });
}

/// Comparisons are false for NaN, so NaN passes through, as in PyTorch.
struct Relu {
  float high;
  __device__ float operator()(float x) const {
    const float positive = x < 0 ? 0.0f : x;
    return positive > high ? high : positive;
  }
};

void relu(const Tensor& x, double ceiling, const Tensor& out) {
  dispatch_floating("relu", x, [&]<class T>(T) {
    map<T, 1>(context(x), {{pointer<T>(x)}}, pointer<T>(out), out.numel(), Relu{static_cast<float>(ceiling)});
  });
}

struct ReluBackward {
  float high;
  __device__ float operator()(float y, float dy) const { return y <= 0 || y >= high ? 0.0f : dy; }
};

void relu_backward(const Tensor& y, const Tensor& dy, double ceiling, const Tensor& dx) {
  // Infinity is no ceiling that an infinite output could have been cut at: nothing compares with NaN.
  if (std::isinf(ceiling)) ceiling = std::numeric_limits<double>::quiet_NaN();
  dispatch_floating("relu backward", y, [&]<class T>(T) {
    const float high = static_cast<float>(T(static_cast<float>(ceiling)));  // as outputs that were cut are rounded
    map<T, 2>(context(y), {{pointer<T>(y), pointer<T>(dy)}}, pointer<T>(dx), dx.numel(), ReluBackward{high});
  });
}

}  // namespace

void register_elementwise(Kernels& k) {
  k.fill = fill;
  k.broadcast = broadcast;
  k.add = add;
  k.scale = scale;
  k.relu = relu;
  k.relu_backward = relu_backward;
  register_convert(k);
  register_sums(k);
  register_images(k);
}

}  // namespace cuttle::cuda
