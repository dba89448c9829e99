#include <limits>

#include "cuda/twin.hpp"
#include "cuttle/autograd.hpp"
#include "cuttle/ops.hpp"

using namespace cuttle;
using namespace cuttle::test;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

struct PoolCase {
  Shape shape;
  Pool2dOptions options;
};

/// Channels that fill 16-byte packs and that do not; windows with kernels of their own and others.
const std::vector<PoolCase>& cases() {
  static const std::vector<PoolCase> all{
      {{3, 64, 8, 10}, {.kernel = 2, .stride = 2}},
      {{3, 8, 7, 5}, {.kernel = 2, .stride = 2, .ceil_mode = true}},
      {{3, 3, 7, 5}, {.kernel = 2, .stride = 2}},
      {{3, 16, 9, 8}, {.kernel = 3, .stride = 2, .padding = 1}},
      {{2, 20, 9, 8}, {.kernel = 3, .stride = 2, .padding = 1, .ceil_mode = true}},
      {{3, 24, 6, 5}, {.kernel = 3, .stride = 1, .padding = 1}},
      {{3, 1, 28, 27}, {.kernel = 2, .stride = 2}},
      {{3, 8, 9, 11}, {.kernel = 2, .stride = {4, 3}}},
      {{3, 7, 8, 7}, {.kernel = {3, 2}, .stride = {2, 1}, .padding = {1, 0}}},
      {{2, 16, 8, 9}, {.kernel = {4, 3}, .stride = {4, 3}, .padding = {2, 1}, .count_include_pad = false}},
      {{1, 40, 7, 7}, {.kernel = 7, .stride = 7}},
      {{1, 8, 20, 35}, {.kernel = 17, .stride = {3, 5}}},
  };
  return all;
}

std::int64_t places(std::int64_t in, std::int64_t kernel, std::int64_t stride, std::int64_t padding, bool ceil) {
  const std::int64_t room = in + 2 * padding - kernel;
  std::int64_t count = room / stride + 1;
  // A window that would start in the right padding is dropped.
  if (ceil && room % stride != 0 && count * stride < in + padding) ++count;
  return count;
}

Shape output_shape(const PoolCase& c) {
  const Pool2dOptions& o = c.options;
  return {c.shape[0], c.shape[1],
          places(c.shape[2], (o.kernel.h - 1) * o.dilation.h + 1, o.stride.h, o.padding.h, o.ceil_mode),
          places(c.shape[3], (o.kernel.w - 1) * o.dilation.w + 1, o.stride.w, o.padding.w, o.ceil_mode)};
}

/// Random numbers in steps of 1/4, so that equal ones occur.
Values coarse(std::int64_t n, unsigned seed) {
  Values values = random_values(n, seed);
  for (double& value : values) value = std::round(4 * value) / 4;
  return values;
}

/// Maxima and their places are those of the CPU, and the gradient is the same sum in the same order.
void check_max(const PoolCase& c, const Variant& v, const Values& numbers) {
  CAPTURE(c.shape.str());
  CAPTURE(v.str());
  const Shape shape = output_shape(c);
  const DType places = c.options.kernel.h * c.options.kernel.w <= 256 ? DType::u8 : DType::i32;
  const Tensor x = rounded(numbers, c.shape, v.dtype, v.layout);
  const Tensor dy = rounded(random_values(shape.numel(), 12), shape, v.dtype, v.layout);
  const TensorOptions exact{DType::f32, kCpu, v.layout};
  const Tensor y = Tensor::empty(shape, exact), dx = Tensor::empty(c.shape, exact);
  const Tensor argmax = Tensor::empty(shape, {places, kCpu, v.layout});
  cpu().max_pool2d(x.to(DType::f32), c.options, y, argmax);
  cpu().max_pool2d_backward(dy.to(DType::f32), argmax, c.options, dx);

  const Tensor there = upload(x, v.offset);
  const Tensor out = output(shape, v.dtype, v.layout, v.offset), winners = output(shape, places, v.layout, v.offset);
  on_gpu().max_pool2d(there, c.options, out, winners);
  CHECK(error_of(from(out), from(y), 1) == 0);
  CHECK(from(winners) == from(argmax));
  const Tensor gradient = output(c.shape, v.dtype, v.layout, v.offset);
  on_gpu().max_pool2d_backward(upload(dy, v.offset), winners, c.options, gradient);
  CHECK(from(gradient) == from(dx.to(v.dtype)));

  const Tensor alone = output(shape, v.dtype, v.layout, v.offset);
  on_gpu().max_pool2d(there, c.options, alone, {});
  CHECK(error_of(from(alone), from(y), 1) == 0);
}

/// forward(kernels, x, y) and backward(kernels, dy, dx) against the CPU's in f64.
template <class Forward, class Backward>
void check_average(const Shape& from_shape, const Shape& to_shape, const Variant& v, Forward forward,
                   Backward backward) {
  CAPTURE(from_shape.str());
  CAPTURE(to_shape.str());
  CAPTURE(v.str());
  const Tensor x = rounded(random_values(from_shape.numel(), 13), from_shape, v.dtype, v.layout);
  const Tensor dy = rounded(random_values(to_shape.numel(), 14), to_shape, v.dtype, v.layout);
  const TensorOptions exact{DType::f64, kCpu, v.layout};
  const Tensor y = Tensor::empty(to_shape, exact), dx = Tensor::empty(from_shape, exact);
  forward(cpu(), x.to(DType::f64), y);
  backward(cpu(), dy.to(DType::f64), dx);
  const Tensor out = output(to_shape, v.dtype, v.layout, v.offset);
  forward(on_gpu(), upload(x, v.offset), out);
  CHECK(excess(out, from(y)) <= 1);
  const Tensor gradient = output(from_shape, v.dtype, v.layout, v.offset);
  backward(on_gpu(), upload(dy, v.offset), gradient);
  CHECK(excess(gradient, from(dx)) <= 1);
}

}  // namespace

TEST_CASE("cuda: max pooling finds the CPU's maxima, places and gradients") {
  for (const Variant& v : variants(true)) {
    for (const PoolCase& c : cases()) check_max(c, v, coarse(c.shape.numel(), 11));
    check_max({{2, 16, 9, 8}, {.kernel = 3, .stride = 1, .dilation = 2}}, v, coarse(2 * 16 * 9 * 8, 11));
    check_max({{1, 5, 10, 11}, {.kernel = 3, .stride = 2, .padding = 1, .dilation = {2, 3}}}, v, coarse(5 * 110, 11));
  }
}

TEST_CASE("cuda: max pooling lets NaN win and knows windows of nothing but minus infinity") {
  const PoolCase overlapping{{2, 8, 9, 8}, {.kernel = 3, .stride = 2, .padding = 1}};
  const PoolCase apart{{2, 8, 9, 8}, {.kernel = 2, .stride = 2}};
  Values numbers = coarse(overlapping.shape.numel(), 15);
  for (std::size_t i = 0; i < numbers.size(); i += 13) numbers[i] = kNan;
  for (std::size_t i = 0; i < 72; ++i) numbers[i] = -kInf;  // a whole channel
  for (const Variant& v : variants(true)) {
    check_max(overlapping, v, numbers);
    check_max(apart, v, numbers);
  }
}

TEST_CASE("cuda: average pooling and its gradient are right in every dtype and layout") {
  for (const Variant& v : variants(true)) {
    for (const PoolCase& c : cases()) {
      check_average(
          c.shape, output_shape(c), v, [&](auto& k, const auto& x, const auto& y) { k.avg_pool2d(x, c.options, y); },
          [&](auto& k, const auto& dy, const auto& dx) { k.avg_pool2d_backward(dy, c.options, dx); });
    }
  }
}

TEST_CASE("cuda: adaptive and global average pooling and their gradients are right in every dtype and layout") {
  struct Case {
    Shape from, to;
  };
  for (const Variant& v : variants(true)) {
    for (const Case& c :
         {Case{{3, 16, 7, 10}, {3, 16, 3, 4}}, Case{{2, 5, 3, 2}, {2, 5, 5, 7}}, Case{{3, 24, 8, 6}, {3, 24, 4, 3}},
          Case{{3, 520, 7, 7}, {3, 520, 1, 1}}, Case{{2, 33, 5, 3}, {2, 33, 1, 1}}, Case{{3, 1, 9, 9}, {3, 1, 1, 1}},
          Case{{2, 8, 1, 1}, {2, 8, 1, 1}}, Case{{1, 8, 56, 57}, {1, 8, 1, 1}}, Case{{3, 8, 5, 9}, {3, 8, 1, 2}}}) {
      check_average(
          c.from, c.to, v, [](auto& k, const auto& x, const auto& y) { k.adaptive_avg_pool2d(x, y); },
          [](auto& k, const auto& dy, const auto& dx) { k.adaptive_avg_pool2d_backward(dy, dx); });
    }
  }
}

TEST_CASE("cuda: tensors of more than 2^31 elements are pooled, clamped and counted to their end") {
  const Shape shape{8200, 64, 64, 64};  // 2^31 + 2.1 million elements, 4.3 GB
  std::uint64_t free_bytes = 0;
  for (const DeviceInfo& info : devices(DeviceKind::cuda)) {
    if (info.device == gpu()) free_bytes = info.free_bytes;
  }
  if (free_bytes < std::uint64_t{16} << 30) return;
  const NoGrad no_grad;
  Tensor x = Tensor::full(shape, -1, {DType::f16, gpu()});
  const Tensor last = tensor<double>(coarse(64 * 64 * 64, 16), {1, 64, 64, 64}).to(DType::f16).to(gpu());
  x.slice(8199, 8200).copy_(last);
  const Tensor pooled = max_pool2d(x, {.kernel = 3, .stride = 2, .padding = 1});
  CHECK(from(pooled.slice(8199, 8200)) == from(max_pool2d(last, {.kernel = 3, .stride = 2, .padding = 1})));
  CHECK(from(pooled.slice(8198, 8199)) == Values(64 * 32 * 32, -1));
  CHECK(from(global_avg_pool2d(x).slice(8199, 8200)) == from(global_avg_pool2d(last)));
  on_gpu().fill(x.slice(8199, 8200), kNan);
  CHECK(non_finite_count(x).item<std::int64_t>() == 64 * 64 * 64);
  relu_(x);
  CHECK(from(x.slice(8198, 8199)) == Values(64 * 64 * 64, 0));
}
