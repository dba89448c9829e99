#include "cuda/map.cuh"
#include "cuda/reduce.cuh"
#include "cuda/register.hpp"

namespace cuttle::cuda {

namespace {

template <class T>
__global__ void fill_kernel(T* out, std::int64_t n, T value) {
  for (std::int64_t i = grid_index(); i < n; i += grid_step()) out[i] = value;
}

void fill(const Tensor& out, double value) {
  const Context& c = context(out);
  dispatch_any(out, [&]<class T>(T) {
    T element;
    if constexpr (sizeof(T) == 2) element = T(static_cast<float>(value));
    else element = static_cast<T>(value);
    fill_kernel<<<blocks_for(c, out.numel()), kThreads, 0, c.stream()>>>(pointer<T>(out), out.numel(), element);
  });
  CUTTLE_LAUNCHED("fill");
}

template <class T>
__global__ void broadcast_kernel(const T* scalar, T* out, std::int64_t n) {
  const T value = *scalar;
  for (std::int64_t i = grid_index(); i < n; i += grid_step()) out[i] = value;
}

void broadcast(const Tensor& scalar, const Tensor& out) {
  const Context& c = context(out);
  dispatch_floating("broadcast", out, [&]<class T>(T) {
    broadcast_kernel<<<blocks_for(c, out.numel()), kThreads, 0, c.stream()>>>(pointer<T>(scalar), pointer<T>(out),
                                                                             out.numel());
  });
  CUTTLE_LAUNCHED("broadcast");
}

void add(const Tensor& a, const Tensor& b, const Tensor& out) {
  dispatch_floating("add", a, [&]<class T>(T) {
    map<T, 2>(context(a), {{pointer<T>(a), pointer<T>(b)}}, pointer<T>(out), out.numel(),
              [] __device__(auto left, auto right) { return left + right; });
  });
}

void scale(const Tensor& x, double factor, const Tensor& out) {
  dispatch_floating("mul", x, [&]<class T>(T) {
    map<T, 1>(context(x), {{pointer<T>(x)}}, pointer<T>(out), out.numel(),
              [f = static_cast<float>(factor)] __device__(auto value) { return value * f; });
  });
}

// Both comparisons are false for NaN, so NaN passes through, as in PyTorch.
void relu(const Tensor& x, const Tensor& out) {
  dispatch_floating("relu", x, [&]<class T>(T) {
    map<T, 1>(context(x), {{pointer<T>(x)}}, pointer<T>(out), out.numel(),
              [] __device__(auto value) { return value < 0 ? decltype(value){0} : value; });
  });
}

void relu_backward(const Tensor& y, const Tensor& dy, const Tensor& dx) {
  dispatch_floating("relu backward", y, [&]<class T>(T) {
    map<T, 2>(context(y), {{pointer<T>(y), pointer<T>(dy)}}, pointer<T>(dx), dx.numel(),
              [] __device__(auto output, auto gradient) { return output <= 0 ? decltype(gradient){0} : gradient; });
  });
}

}  // namespace

}  // namespace cuttle::cuda
