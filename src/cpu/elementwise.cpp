#include "cpu/elementwise.hpp"

#include <cmath>
#include <limits>

#include "cpu/dispatch.hpp"
#include "cpu/elementwise_cast.hpp"
#include "cpu/register.hpp"
#include "kernels.hpp"

namespace cuttle::cpu {

// Comparisons are false for NaN, so NaN passes through, as in PyTorch.
void relu(const Tensor& x, double ceiling, const Tensor& out) {
  dispatch_floating("relu", x, [&]<class T>(T) {
    map(x.data<T>(), writable<T>(out), out.numel(), [high = static_cast<T>(ceiling)](T value) {
      const T positive = value < 0 ? T{0} : value;
      return positive > high ? high : positive;
    });
  });
}

void relu_backward(const Tensor& y, const Tensor& dy, double ceiling, const Tensor& dx) {
  // Infinity is no ceiling that an infinite output could have been cut at: nothing compares with NaN.
  if (std::isinf(ceiling)) ceiling = std::numeric_limits<double>::quiet_NaN();
  // Both comparisons are always made: a branch between them keeps the loop from being vectorised, at four times the
  // time.
  dispatch_floating("relu backward", y, [&]<class T>(T) {
    map(y.data<T>(), dy.data<T>(), writable<T>(dx), dx.numel(), [high = static_cast<T>(ceiling)](T output, T gradient) {
      return static_cast<bool>((output <= 0) | (output >= high)) ? T{0} : gradient;
    });
  });
}

namespace {

void fill(const Tensor& out, double value) {
  dispatch_any(out, [&]<class T>(T) {
    T* to = writable<T>(out);
    parallel_for(out.numel(), kElementGrain, [=, element = cast<T>(value)](std::int64_t begin, std::int64_t end) {
      std::fill(to + begin, to + end, element);
    });
  });
}

void broadcast(const Tensor& scalar, const Tensor& out) {
  dispatch_floating("broadcast", scalar, [&]<class T>(T) { fill(out, static_cast<double>(*scalar.data<T>())); });
}

void add(const Tensor& a, const Tensor& b, const Tensor& out) {
  dispatch_floating("add", a, [&]<class T>(T) {
    map(a.data<T>(), b.data<T>(), writable<T>(out), out.numel(), [](T left, T right) { return left + right; });
  });
}

void scale(const Tensor& x, double factor, const Tensor& out) {
  dispatch_floating("mul", x, [&]<class T>(T) {
    map(x.data<T>(), writable<T>(out), out.numel(), [f = static_cast<T>(factor)](T value) { return value * f; });
  });
}

void sum(const Tensor& x, const Tensor& out) {
  dispatch_floating("sum", x, [&]<class T>(T) {
    *writable<T>(out) = static_cast<T>(sum_terms(x.data<T>(), x.numel(), [](double value) { return value; }));
  });
}

void non_finite_count(const Tensor& x, const Tensor& out) {
  dispatch_floating("non_finite_count", x, [&]<class T>(T) {
    // value - value is 0 for finite values and NaN for all others
    *writable<std::int64_t>(out) = static_cast<std::int64_t>(
        sum_terms(x.data<T>(), x.numel(), [](double value) { return value - value == 0 ? 0.0 : 1.0; }));
  });
}

}  // namespace

void register_elementwise(Kernels& k) {
  k.fill = fill;
  k.broadcast = broadcast;
  k.convert = convert;
  k.add = add;
  k.scale = scale;
  k.relu = relu;
  k.relu_backward = relu_backward;
  k.sum = sum;
  k.non_finite_count = non_finite_count;
  k.normalize_images = normalize_images;
}

}  // namespace cuttle::cpu
