#include <vector>

#include "support/cpu_kernel_util.hpp"

using namespace cuttle;
using namespace cuttle::test;

namespace {

// Few and many channels, pixel counts that have no small factors, one row, blocks of rows that are cut short.
const Shape kShapes[] = {{2, 3, 5, 7}, {1, 1, 1, 2}, {4, 16, 6, 6}, {3, 70, 11, 1}, {2, 129, 7, 7}, {5, 6, 29, 31}};

struct Channels {
  Values weight, bias, running_mean, running_var;
};

Channels random_channels(std::int64_t count) {
  Channels c{random_values(count, 11, 1, 0.3), random_values(count, 12), random_values(count, 13),
             random_values(count, 14)};
  for (double& v : c.running_var) v = v * v + 0.1;
  return c;
}

std::size_t channel_of(const Shape& shape, std::size_t i) {
  return i / static_cast<std::size_t>(shape[2] * shape[3]) % static_cast<std::size_t>(shape[1]);
}

double per_channel(const Shape& shape) { return static_cast<double>(shape.numel() / shape[1]); }

Values sum_per_channel(const Shape& shape, const Values& v) {
  Values sums(static_cast<std::size_t>(shape[1]));
  for (std::size_t i = 0; i < v.size(); ++i) sums[channel_of(shape, i)] += v[i];
  return sums;
}

struct Moments {
  Values mean, var;
};

Moments moments_of(const Shape& shape, const Values& x) {
  Values mean = sum_per_channel(shape, x);
  for (double& m : mean) m /= per_channel(shape);
  Values squares = x;
  for (std::size_t i = 0; i < x.size(); ++i) squares[i] = std::pow(x[i] - mean[channel_of(shape, i)], 2);
  Values var = sum_per_channel(shape, squares);
  for (double& v : var) v /= per_channel(shape);
  return {mean, var};
}

Values inverse_deviation(const Values& var, double eps) {
  Values result;
  for (const double v : var) result.push_back(1 / std::sqrt(v + eps));
  return result;
}

/// (x - mean) * inv_std
Values normalized(const Shape& shape, const Values& x, const Values& mean, const Values& inv_std) {
  Values result = x;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t c = channel_of(shape, i);
    result[i] = (x[i] - mean[c]) * inv_std[c];
  }
  return result;
}

Values scaled(const Shape& shape, Values v, const Values& weight, const Values& bias) {
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = v[i] * weight[channel_of(shape, i)] + bias[channel_of(shape, i)];
  return v;
}

Values times(Values a, const Values& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] *= b[i];
  return a;
}

struct Gradients {
  Values dx, d_weight, d_bias;
};

/// From the definition: y depends on x directly, through the mean and through the variance.
Gradients train_gradients(const Shape& shape, const Values& x, const Values& dy, const Values& weight, double eps) {
  const auto [mean, var] = moments_of(shape, x);
  const Values inv_std = inverse_deviation(var, eps), xhat = normalized(shape, x, mean, inv_std);
  const double count = per_channel(shape);
  Gradients g{dy, sum_per_channel(shape, times(dy, xhat)), sum_per_channel(shape, dy)};
  for (std::size_t i = 0; i < x.size(); ++i) {
    const std::size_t c = channel_of(shape, i);
    const double through_var = -0.5 * weight[c] * g.d_weight[c] * inv_std[c] * inv_std[c];
    const double through_mean = -weight[c] * inv_std[c] * g.d_bias[c];
    g.dx[i] = dy[i] * weight[c] * inv_std[c] + through_var * 2 * (x[i] - mean[c]) / count + through_mean / count;
  }
  return g;
}

constexpr double kEps = 1e-3;

template <class T> void check_train(const Shape& shape, Layout layout) {
  CAPTURE(shape.str());
  CAPTURE(name_of(layout));
  const std::int64_t channels = shape[1];
  const Channels c = random_channels(channels);
  const Values x = random_values(shape.numel(), 1, 2, 3), dy = random_values(shape.numel(), 2);
  const auto [mean, var] = moments_of(shape, x);
  const Values inv_std = inverse_deviation(var, kEps);

  const Tensor tx = tensor<T>(x, shape, layout), weight = tensor<T>(c.weight, {channels});
  const Tensor running_mean = tensor<float>(c.running_mean, {channels}),
               running_var = tensor<float>(c.running_var, {channels});
  const Tensor y = unwritten<T>(shape, layout), batch_mean = unwritten<T>({channels}),
               batch_inv_std = unwritten<T>({channels});
  cpu().batch_norm_train(tx, weight, tensor<T>(c.bias, {channels}), running_mean, running_var, {},
                         {.momentum = 0.2, .eps = kEps}, {}, y, batch_mean, batch_inv_std);
  const double close = tolerance<T>();
  CHECK(error_of(values<T>(y), scaled(shape, normalized(shape, x, mean, inv_std), c.weight, c.bias)) < close);
  CHECK(error_of(values<T>(batch_mean), mean) < close);
  CHECK(error_of(values<T>(batch_inv_std), inv_std) < close);
  Values expected_mean, expected_var;
  const double unbias = per_channel(shape) / (per_channel(shape) - 1);
  for (std::size_t i = 0; i < mean.size(); ++i) {
    expected_mean.push_back(0.8 * c.running_mean[i] + 0.2 * mean[i]);
    expected_var.push_back(0.8 * c.running_var[i] + 0.2 * var[i] * unbias);
  }
  CHECK(error_of(values<float>(running_mean), expected_mean) < 1e-6);
  CHECK(error_of(values<float>(running_var), expected_var) < 1e-6);

  const Gradients expected = train_gradients(shape, x, dy, c.weight, kEps);
  const Tensor dx = unwritten<T>(shape, layout), d_weight = unwritten<T>({channels}), d_bias = unwritten<T>({channels});
  cpu().batch_norm_train_backward(tensor<T>(dy, shape, layout), {}, tx, {}, weight, {}, batch_mean, batch_inv_std, {},
                                  false, dx, {}, d_weight, d_bias);
  // The terms of dx may cancel: in a channel of two values they always do.
  const double dx_scale = largest(scaled(shape, dy, times(c.weight, inv_std), Values(c.weight.size())));
  CHECK(error_of(values<T>(dx), expected.dx, dx_scale) < close);
  cpu().batch_norm_train_backward(tensor<T>(dy, shape, layout), {}, tx, {}, weight, {}, batch_mean, batch_inv_std, {},
                                  false, tx, {}, d_weight, d_bias);
  CHECK(values<T>(tx) == values<T>(dx));
  CHECK(error_of(values<T>(d_weight), expected.d_weight) < close);
  CHECK(error_of(values<T>(d_bias), expected.d_bias) < close);
}

template <class T> void check_eval(const Shape& shape, Layout layout) {
  const std::int64_t channels = shape[1];
  const Channels c = random_channels(channels);
  const Values x = random_values(shape.numel(), 1, 2, 3), dy = random_values(shape.numel(), 2);
  const Values inv_std = inverse_deviation(c.running_var, kEps), xhat = normalized(shape, x, c.running_mean, inv_std);
  const Tensor tx = tensor<T>(x, shape, layout), tdy = tensor<T>(dy, shape, layout),
               weight = tensor<T>(c.weight, {channels});
  const Tensor running_mean = tensor<float>(c.running_mean, {channels}),
               running_var = tensor<float>(c.running_var, {channels});
  const Tensor y = unwritten<T>(shape, layout), dx = unwritten<T>(shape, layout), d_weight = unwritten<T>({channels}),
               d_bias = unwritten<T>({channels});
  cpu().batch_norm_eval(tx, weight, tensor<T>(c.bias, {channels}), running_mean, running_var, kEps, {}, y);
  cpu().batch_norm_eval_backward(tdy, tx, {}, weight, running_mean, running_var, kEps, {}, dx, {}, d_weight, d_bias);
  // Running statistics are f32 even where x is f64.
  const double close = 2e-6;
  const Values zero(c.weight.size());
  CHECK(error_of(values<T>(y), scaled(shape, xhat, c.weight, c.bias)) < close);
  CHECK(error_of(values<T>(dx), scaled(shape, dy, times(c.weight, inv_std), zero)) < close);
  CHECK(error_of(values<T>(d_weight), sum_per_channel(shape, times(dy, xhat))) < close);
  CHECK(error_of(values<T>(d_bias), sum_per_channel(shape, dy)) < close);
}

}  // namespace

TEST_CASE("batch_norm_train equals its definition: output, statistics, running statistics and gradients") {
  for (const Shape& shape : kShapes) {
    for (const Layout layout : kLayouts) {
      check_train<float>(shape, layout);
      check_train<double>(shape, layout);
    }
  }
}

TEST_CASE("batch_norm_eval equals its definition, output and gradients") {
  for (const Shape& shape : kShapes) {
    for (const Layout layout : kLayouts) {
      check_eval<float>(shape, layout);
      check_eval<double>(shape, layout);
    }
  }
}

TEST_CASE("batch_norm_train keeps its precision where the mean dwarfs the deviation") {
  const Shape shape{8, 5, 30, 30};
  const Values x = random_values(shape.numel(), 3, 1e4, 0.5);
  const auto [mean, var] = moments_of(shape, x);
  const Tensor y = unwritten<float>(shape), batch_mean = unwritten<float>({5}), inv_std = unwritten<float>({5});
  cpu().batch_norm_train(tensor<float>(x, shape), {}, {}, {}, {}, {}, {.eps = 1e-5}, {}, y, batch_mean, inv_std);
  CHECK(error_of(values<float>(inv_std), inverse_deviation(var, 1e-5)) < 1e-6);
  CHECK(error_of(values<float>(batch_mean), mean) < 1e-7);
  // What is left is the rounding of the mean to f32: half a unit of 1e4's last place, over 0.5.
  CHECK(error_of(values<float>(y), normalized(shape, x, mean, inverse_deviation(var, 1e-5))) < 3e-4);
}

TEST_CASE("batch_norm works with no weight, bias or running statistics, and leaves undefined gradients out") {
  const Shape shape{3, 4, 5, 5};
  const Values x = random_values(shape.numel(), 4), dy = random_values(shape.numel(), 5), one(4, 1);
  const auto [mean, var] = moments_of(shape, x);
  const Values inv_std = inverse_deviation(var, 1e-5);
  const Tensor tx = tensor<float>(x, shape), tdy = tensor<float>(dy, shape), y = unwritten<float>(shape),
               dx = unwritten<float>(shape), batch_mean = unwritten<float>({4}), batch_inv_std = unwritten<float>({4});
  cpu().batch_norm_train(tx, {}, {}, {}, {}, {}, {}, {}, y, batch_mean, batch_inv_std);
  CHECK(error_of(values<float>(y), normalized(shape, x, mean, inv_std)) < 2e-6);
  cpu().batch_norm_train_backward(tdy, {}, tx, {}, {}, {}, batch_mean, batch_inv_std, {}, false, dx, {}, {}, {});
  CHECK(error_of(values<float>(dx), train_gradients(shape, x, dy, one, 1e-5).dx) < 4e-6);

  const Tensor running_mean = tensor<float>(Values(4, 0.5), {4}), running_var = tensor<float>(Values(4, 4), {4});
  const Tensor d_bias = unwritten<float>({4});
  cpu().batch_norm_eval_backward(tdy, tx, {}, {}, running_mean, running_var, 0, {}, {}, {}, {}, d_bias);
  CHECK(error_of(values<float>(d_bias), sum_per_channel(shape, dy)) < 2e-6);
  cpu().batch_norm_eval_backward(tdy, tx, {}, {}, running_mean, running_var, 0, {}, dx, {}, {}, {});
  CHECK(error_of(values<float>(dx), scaled(shape, dy, Values(4, 0.5), Values(4))) < 2e-6);
}

TEST_CASE("batch_norm gives the same bits for any number of threads") {
  const Shape shape{6, 24, 33, 31};
  const Tensor x = tensor<float>(random_values(shape.numel(), 6), shape),
               dy = tensor<float>(random_values(shape.numel(), 7), shape);
  std::vector<Values> results;
  for (const int threads : {1, 2, 3}) {
    const Threads scope(threads);
    const Tensor y = unwritten<float>(shape), dx = unwritten<float>(shape), mean = unwritten<float>({24}),
                 inv_std = unwritten<float>({24}), d_weight = unwritten<float>({24}), d_bias = unwritten<float>({24});
    cpu().batch_norm_train(x, {}, {}, {}, {}, {}, {}, {}, y, mean, inv_std);
    cpu().batch_norm_train_backward(dy, {}, x, {}, {}, {}, mean, inv_std, {}, false, dx, {}, d_weight, d_bias);
    Values all;
    for (const Tensor& t : {y, dx, mean, inv_std, d_weight, d_bias}) {
      const Values part = values<float>(t);
      all.insert(all.end(), part.begin(), part.end());
    }
    results.push_back(all);
  }
  CHECK(results[1] == results[0]);
  CHECK(results[2] == results[0]);
}
