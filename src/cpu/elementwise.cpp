#include "cpu/elementwise.hpp"

#include "cpu/dispatch.hpp"
#include "cpu/elementwise_cast.hpp"
#include "cpu/layout.hpp"
#include "cpu/norm_channels.hpp"
#include "cpu/register.hpp"
#include "kernels.hpp"

namespace cuttle::cpu {
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

// Both comparisons are false for NaN, so NaN passes through, as in PyTorch.
void relu(const Tensor& x, const Tensor& out) {
  dispatch_floating("relu", x, [&]<class T>(T) {
    map(x.data<T>(), writable<T>(out), out.numel(), [](T value) { return value < 0 ? T{0} : value; });
  });
}

void relu_backward(const Tensor& y, const Tensor& dy, const Tensor& dx) {
  dispatch_floating("relu backward", y, [&]<class T>(T) {
    map(y.data<T>(), dy.data<T>(), writable<T>(dx), dx.numel(),
        [](T output, T gradient) { return output <= 0 ? T{0} : gradient; });
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

/// (x/255 - mean) / stddev with the constants folded: (x - 255 mean) / (255 stddev).
void normalize_images(const Tensor& images, const Tensor& mean, const Tensor& stddev, const Tensor& out) {
  const std::int64_t channels = images.size(1);
  ChannelAffine affine{channel_values(mean, channels, 0), channel_values(stddev, channels, 1), {}};
  for (double& center : affine.center) center *= 255;
  for (double& factor : affine.scale) factor = 1 / (255 * factor);
  affine.shift.assign(affine.center.size(), 0);
  const Tensor pixels = to_nhwc(images), result = nhwc_scratch(out);
  apply_affine(pixels.data<std::uint8_t>(), affine, columns_of(pixels), writable<float>(result));
  from_nhwc(result, out);
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
