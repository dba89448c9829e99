#include <limits>

#include "core/capture.hpp"
#include "cuda/twin.hpp"

using namespace cuttle;
using namespace cuttle::test;

namespace {

// One channel, three, many and odd ones, tiles that are not full, one pixel, one image, rows for several blocks.
const Shape kShapes[] = {{4, 1, 3, 3},    {2, 3, 5, 7},   {3, 209, 2, 2}, {64, 8, 1, 1},
                         {1, 16, 6, 5},   {3, 12, 5, 5},  {5, 144, 9, 9}, {3, 24, 23, 21},
                         {4, 64, 20, 20}, {3, 280, 7, 7}, {3, 520, 9, 9}, {2, 3, 64, 67}};
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kEps = 1e-3, kMomentum = 0.2;

struct Then {
  bool residual, relu;
  double ceiling = kInf;
};
const Then kThens[] = {{false, false}, {false, true}, {false, true, 1.5},
                       {true, false},  {true, true},  {true, true, 1.5}};

double tolerance_of(DType dtype) { return dtype == DType::f32 ? 1e-5 : dtype == DType::f16 ? 2e-3 : 1.6e-2; }

/// A tensor's values on both devices: rounded to the dtype of the GPU's, in f64 for the CPU's.
struct Pair {
  Tensor exact, narrow;

  Pair(const Values& values, const Shape& shape, const Variant& v) {
    const Tensor host = rounded(values, shape, v.dtype, v.layout);
    exact = host.to(DType::f64);
    narrow = upload(host, v.offset);
  }
  explicit Pair(const Values& values)  // of channels
      : Pair(values, {static_cast<std::int64_t>(values.size())}, {DType::f32, Layout::nhwc, 0}) {}
};

struct Channels {
  Pair weight, bias, running_mean, running_var;

  explicit Channels(std::int64_t count)
      : weight(random_values(count, 11, 1, 0.3)),
        bias(random_values(count, 12)),
        running_mean(random_values(count, 13)),
        running_var(positive(random_values(count, 14))) {}
  static Values positive(Values values) {
    for (double& v : values) v = v * v + 0.1;
    return values;
  }
};

Tensor exact_output(const Tensor& like) { return Tensor::empty(like.shape(), like.options()); }

void check_close(const Tensor& actual, const Tensor& expected, double scale = 0) {
  const Values wanted = from(expected);
  const double of = scale > 0 ? scale : largest(wanted) + 1e-30;
  CHECK(error_of(from(actual), wanted, of) < tolerance_of(actual.dtype()));
}

/// Statistics and gradients of channels are f32 and exact but for arithmetic, whatever the dtype of the images is.
void check_channels(const Tensor& actual, const Tensor& expected) {
  const Values wanted = from(expected);
  CHECK(error_of(from(actual), wanted, largest(wanted) + 1e-30) < 1e-5);
}

struct Backward {
  Tensor dx, d_residual, d_weight, d_bias;

  Backward(const Tensor& x, DType channels, const Variant& v, bool residual) {
    const auto make = [&](const Shape& shape, DType dtype) {
      if (x.device().is_cpu()) return Tensor::empty(shape, {dtype, kCpu, x.layout()});
      return output(shape, dtype, x.layout(), shape.rank() == 4 ? v.offset : 0);
    };
    dx = make(x.shape(), x.dtype());
    if (residual) d_residual = make(x.shape(), x.dtype());
    d_weight = make({x.size(1)}, channels);
    d_bias = make({x.size(1)}, channels);
  }
};

void check_backward(const Backward& actual, const Backward& expected, double dx_scale) {
  check_close(actual.dx, expected.dx, dx_scale);
  if (actual.d_residual.defined()) CHECK(error_of(from(actual.d_residual), from(expected.d_residual), 1) == 0);
  check_channels(actual.d_weight, expected.d_weight);
  check_channels(actual.d_bias, expected.d_bias);
}

/// dx is a difference of terms as large as dy * weight / deviation, which may cancel.
double dx_scale(const Tensor& dy, const Tensor& weight, const Tensor& inv_std) {
  return largest(from(dy)) * largest(from(weight)) * largest(from(inv_std));
}

/// dy behind the clamp of y, which is the GPU's own, so that a value near 0 or the ceiling is no difference.
Tensor exact_gradient(const Tensor& dy, const Tensor& y, const Then& then) {
  if (!then.relu) return dy;
  Tensor gradient = exact_output(dy);
  cpu().relu_backward(y.to(kCpu).to(DType::f64), dy, then.ceiling, gradient);
  return gradient;
}

/// What the backward is given of y.
Tensor kept(const Tensor& y, const Then& then) { return then.relu && then.residual ? y : Tensor(); }

/// Two gradients give what their sum does, which the GPU's own add rounds; then in the places of one and of x.
void check_two(const Variant& v, const Pair& x, const Tensor& y, const Channels& c, const Tensor& mean,
               const Tensor& spread, const Then& then) {
  const Shape& shape = x.exact.shape();
  const Pair first(random_values(shape.numel(), 3), shape, v), second(random_values(shape.numel(), 4), shape, v);
  const Tensor sum = output(shape, v.dtype, v.layout, v.offset);
  on_gpu().add(first.narrow, second.narrow, sum);
  const auto host = [](const Tensor& t) { return t.to(kCpu).to(DType::f64); };
  const Activation act{{}, then.relu, then.ceiling};
  const Backward expected(x.exact, DType::f64, v, true);
  cpu().batch_norm_train_backward(exact_gradient(host(sum), y, then), {}, x.exact, {}, c.weight.exact, c.bias.exact,
                                  host(mean), host(spread), {}, then.residual, expected.dx, expected.d_residual,
                                  expected.d_weight, expected.d_bias);
  const double scale = dx_scale(host(sum), c.weight.exact, host(spread));
  Backward actual(x.narrow, DType::f32, v, true), in_place(x.narrow, DType::f32, v, false);
  in_place.d_residual = first.narrow;
  in_place.dx = x.narrow.clone();
  for (const Backward* to : {&actual, &in_place}) {
    const Tensor& input = to == &in_place ? in_place.dx : x.narrow;
    on_gpu().batch_norm_train_backward(first.narrow, second.narrow, input, kept(y, then), c.weight.narrow,
                                       c.bias.narrow, mean, spread, act, then.residual, to->dx, to->d_residual,
                                       to->d_weight, to->d_bias);
    check_backward(*to, expected, scale);
  }
}

void check_train(const Variant& v, const Shape& shape, const Then& then) {
  const std::int64_t n = shape.numel(), channels = shape[1];
  const Pair x(random_values(n, 1, 2, 3), shape, v), residual(random_values(n, 2), shape, v),
      dy(random_values(n, 3), shape, v);
  const Channels c(channels);
  const auto activation = [&](const Tensor& r) {
    return Activation{then.residual ? r : Tensor(), then.relu, then.ceiling};
  };
  const BatchNorm2dOptions options{.momentum = kMomentum, .eps = kEps};
  const Tensor y_exact = exact_output(x.exact), mean_exact = exact_output(c.bias.exact),
               spread_exact = exact_output(c.bias.exact);
  cpu().batch_norm_train(x.exact, c.weight.exact, c.bias.exact, c.running_mean.exact, c.running_var.exact, {}, options,
                         activation(residual.exact), y_exact, mean_exact, spread_exact);
  const Tensor y = output(shape, v.dtype, v.layout, v.offset), mean = output({channels}, DType::f32),
               spread = output({channels}, DType::f32), batches = Tensor::full({}, 41, {DType::i64, gpu()});
  on_gpu().batch_norm_train(x.narrow, c.weight.narrow, c.bias.narrow, c.running_mean.narrow, c.running_var.narrow,
                            batches, options, activation(residual.narrow), y, mean, spread);
  check_close(y, y_exact);
  check_channels(mean, mean_exact);
  check_channels(spread, spread_exact);
  check_channels(c.running_mean.narrow, c.running_mean.exact);
  check_channels(c.running_var.narrow, c.running_var.exact);
  CHECK(batches.item<std::int64_t>() == 42);

  const Tensor clamped = kept(y, then);
  const Activation act{{}, then.relu, then.ceiling};
  const Backward expected(x.exact, DType::f64, v, then.residual);
  cpu().batch_norm_train_backward(exact_gradient(dy.exact, y, then), {}, x.exact, {}, c.weight.exact, c.bias.exact,
                                  mean_exact, spread_exact, {}, then.residual, expected.dx, expected.d_residual,
                                  expected.d_weight, expected.d_bias);
  const double scale = dx_scale(dy.exact, c.weight.exact, spread_exact);
  Backward actual(x.narrow, DType::f32, v, then.residual);
  on_gpu().batch_norm_train_backward(dy.narrow, {}, x.narrow, clamped, c.weight.narrow, c.bias.narrow, mean, spread,
                                     act, then.residual, actual.dx, actual.d_residual, actual.d_weight, actual.d_bias);
  check_backward(actual, expected, scale);
  check_two(v, x, y, c, mean, spread, then);
  Backward over_x(x.narrow, DType::f32, v, then.residual);
  over_x.dx = x.narrow.clone();
  on_gpu().batch_norm_train_backward(dy.narrow, {}, over_x.dx, clamped, c.weight.narrow, c.bias.narrow, mean, spread,
                                     act, then.residual, over_x.dx, over_x.d_residual, over_x.d_weight, over_x.d_bias);
  check_backward(over_x, expected, scale);
  if (!then.residual) return;
  // d_residual in dy's place; and nobody wants it.
  Backward in_place(x.narrow, DType::f32, v, false), unwanted(x.narrow, DType::f32, v, false);
  on_gpu().batch_norm_train_backward(dy.narrow, {}, x.narrow, clamped, c.weight.narrow, c.bias.narrow, mean, spread,
                                     act, true, unwanted.dx, {}, unwanted.d_weight, unwanted.d_bias);
  check_backward(unwanted, expected, scale);
  in_place.d_residual = dy.narrow;
  on_gpu().batch_norm_train_backward(dy.narrow, {}, x.narrow, clamped, c.weight.narrow, c.bias.narrow, mean, spread,
                                     act, true, in_place.dx, in_place.d_residual, in_place.d_weight, in_place.d_bias);
  check_backward(in_place, expected, scale);
}

void check_eval(const Variant& v, const Shape& shape, const Then& then) {
  const std::int64_t n = shape.numel(), channels = shape[1];
  const Pair x(random_values(n, 1, 2, 3), shape, v), residual(random_values(n, 2), shape, v),
      dy(random_values(n, 3), shape, v);
  const Channels c(channels);
  const Tensor y_exact = exact_output(x.exact), y = output(shape, v.dtype, v.layout, v.offset);
  cpu().batch_norm_eval(x.exact, c.weight.exact, c.bias.exact, c.running_mean.exact, c.running_var.exact, kEps,
                        {then.residual ? residual.exact : Tensor(), then.relu, then.ceiling}, y_exact);
  on_gpu().batch_norm_eval(x.narrow, c.weight.narrow, c.bias.narrow, c.running_mean.narrow, c.running_var.narrow, kEps,
                           {then.residual ? residual.narrow : Tensor(), then.relu, then.ceiling}, y);
  check_close(y, y_exact);
  const Tensor clamped_exact = then.relu ? y.to(kCpu).to(DType::f64) : Tensor(), clamped = then.relu ? y : Tensor();
  const Activation act{{}, then.relu, then.ceiling};
  const Backward expected(x.exact, DType::f64, v, then.residual), actual(x.narrow, DType::f32, v, then.residual);
  cpu().batch_norm_eval_backward(dy.exact, x.exact, clamped_exact, c.weight.exact, c.running_mean.exact,
                                 c.running_var.exact, kEps, act, expected.dx, expected.d_residual, expected.d_weight,
                                 expected.d_bias);
  on_gpu().batch_norm_eval_backward(dy.narrow, x.narrow, clamped, c.weight.narrow, c.running_mean.narrow,
                                    c.running_var.narrow, kEps, act, actual.dx, actual.d_residual, actual.d_weight,
                                    actual.d_bias);
  check_backward(actual, expected, 0);
}

}  // namespace

TEST_CASE("cuda: batch norm in training equals the CPU's, with what follows it, in every shape, dtype and layout") {
  for (const Variant& v : variants(true)) {
    CAPTURE(v.str());
    for (const Shape& shape : kShapes) {
      CAPTURE(shape.str());
      for (const Then& then : kThens) {
        CAPTURE(then.residual);
        CAPTURE(then.relu);
        CAPTURE(then.ceiling);
        check_train(v, shape, then);
      }
    }
  }
}

TEST_CASE("cuda: batch norm in evaluation equals the CPU's, with what follows it, in every shape, dtype and layout") {
  for (const Variant& v : variants(true)) {
    CAPTURE(v.str());
    for (const Shape& shape : kShapes) {
      CAPTURE(shape.str());
      for (const Then& then : kThens) {
        CAPTURE(then.residual);
        CAPTURE(then.relu);
        CAPTURE(then.ceiling);
        check_eval(v, shape, then);
      }
    }
  }
}

TEST_CASE("cuda: batch norm keeps its precision where the mean dwarfs the deviation") {
  for (const Layout layout : kLayouts) {
    for (const std::int64_t channels : {5, 8}) {
      const Shape shape{8, channels, 30, 30};
      const Pair x(random_values(shape.numel(), 3, 1e4, 0.5), shape, {DType::f32, layout, 0});
      const Tensor y_exact = exact_output(x.exact), mean_exact = Tensor::empty({channels}, {DType::f64}),
                   spread_exact = Tensor::empty({channels}, {DType::f64});
      cpu().batch_norm_train(x.exact, {}, {}, {}, {}, {}, {}, {}, y_exact, mean_exact, spread_exact);
      const Tensor y = output(shape, DType::f32, layout), mean = output({channels}, DType::f32),
                   spread = output({channels}, DType::f32);
      on_gpu().batch_norm_train(x.narrow, {}, {}, {}, {}, {}, {}, {}, y, mean, spread);
      CHECK(error_of(from(spread), from(spread_exact)) < 1e-6);
      CHECK(error_of(from(mean), from(mean_exact)) < 1e-7);
      // What is left is the rounding of the mean to f32: half a unit of 1e4's last place, over 0.5.
      CHECK(error_of(from(y), from(y_exact)) < 3e-4);
    }
  }
}

TEST_CASE("cuda: batch norm works with no weight, bias or running statistics, and leaves undefined gradients out") {
  for (const Layout layout : kLayouts) {
    const Shape shape{3, 8, 5, 5};
    const Variant v{DType::f32, layout, 0};
    const Pair x(random_values(shape.numel(), 4), shape, v), dy(random_values(shape.numel(), 5), shape, v);
    const Channels c(8);
    const Activation relu{.relu = true};
    const Tensor y = output(shape, v.dtype, layout), mean = output({8}, DType::f32), spread = output({8}, DType::f32);
    const Tensor y_exact = exact_output(x.exact), mean_exact = Tensor::empty({8}, {DType::f64}),
                 spread_exact = Tensor::empty({8}, {DType::f64});
    cpu().batch_norm_train(x.exact, {}, {}, {}, {}, {}, {}, relu, y_exact, mean_exact, spread_exact);
    on_gpu().batch_norm_train(x.narrow, {}, {}, {}, {}, {}, {}, relu, y, mean, spread);
    check_close(y, y_exact);
    const Tensor dx = output(shape, v.dtype, layout), dx_exact = exact_output(x.exact);
    cpu().batch_norm_train_backward(exact_gradient(dy.exact, y, {false, true}), {}, x.exact, {}, {}, {}, mean_exact,
                                    spread_exact, {}, false, dx_exact, {}, {}, {});
    on_gpu().batch_norm_train_backward(dy.narrow, {}, x.narrow, {}, {}, {}, mean, spread, relu, false, dx, {}, {}, {});
    check_close(dx, dx_exact);

    const Tensor d_bias = output({8}, DType::f32), d_bias_exact = Tensor::empty({8}, {DType::f64});
    cpu().batch_norm_eval_backward(dy.exact, x.exact, {}, {}, c.running_mean.exact, c.running_var.exact, 0, {}, {}, {},
                                   {}, d_bias_exact);
    on_gpu().batch_norm_eval_backward(dy.narrow, x.narrow, {}, {}, c.running_mean.narrow, c.running_var.narrow, 0, {},
                                      {}, {}, {}, d_bias);
    check_channels(d_bias, d_bias_exact);
  }
}

TEST_CASE("cuda: NaN passes batch norm's clamp, and a value in one channel leaves the others alone") {
  const Shape shape{2, 8, 4, 4};
  Values values = random_values(shape.numel(), 6);
  values[3] = std::numeric_limits<double>::quiet_NaN();  // channel 0
  const Pair x(values, shape, {DType::f16, Layout::nhwc, 0});
  const Tensor y = output(shape, DType::f16), mean = output({8}, DType::f32), spread = output({8}, DType::f32);
  on_gpu().batch_norm_train(x.narrow, {}, {}, {}, {}, {}, {}, {.relu = true}, y, mean, spread);
  const Values out = from(y);
  for (std::size_t i = 0; i < out.size(); ++i) CHECK(std::isnan(out[i]) == (i / 16 % 8 == 0));
}

TEST_CASE("cuda: batch norm gives the same bits every time, and a recorded one at each replay") {
  const Shape shape{16, 40, 19, 17};
  const Variant v{DType::f16, Layout::nhwc, 0};
  const Pair x(random_values(shape.numel(), 7, 1, 2), shape, v), dy(random_values(shape.numel(), 8), shape, v);
  const Channels c(40);
  const Activation relu{.relu = true};
  const Tensor y = output(shape, v.dtype), mean = output({40}, DType::f32), spread = output({40}, DType::f32),
               dx = output(shape, v.dtype), d_weight = output({40}, DType::f32), d_bias = output({40}, DType::f32),
               batches = Tensor::zeros({}, {DType::i64, gpu()});
  const auto work = [&] {
    on_gpu().batch_norm_train(x.narrow, c.weight.narrow, c.bias.narrow, {}, {}, batches, {}, relu, y, mean, spread);
    on_gpu().batch_norm_train_backward(dy.narrow, {}, x.narrow, {}, c.weight.narrow, c.bias.narrow, mean, spread, relu,
                                       false, dx, {}, d_weight, d_bias);
  };
  const auto results = [&] {
    std::vector<Values> all;
    for (const Tensor& t : {y, mean, spread, dx, d_weight, d_bias}) all.push_back(from(t));
    return all;
  };
  work();
  const std::vector<Values> first = results();
  for (int i = 0; i < 3; ++i) work();
  CHECK(results() == first);

  const memory::PoolId pool = memory::allocator(gpu()).create_private_pool();
  {
    std::unique_ptr<CapturedWork> step;
    {
      const AllocationScope scope(gpu(), pool);
      step = testing::gpu_backend().capture(gpu().index, work);
    }
    CHECK(batches.item<std::int64_t>() == 4);
    for (const Tensor& t : {y, dx, d_weight}) Tensor(t).fill_(77);
    step->replay();
    step->replay();
    CHECK(results() == first);
    CHECK(batches.item<std::int64_t>() == 6);
  }
  memory::allocator(gpu()).release_private_pool(pool);
}
