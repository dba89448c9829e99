#include <algorithm>
#include <functional>
#include <limits>

#include "support/cpu_kernel_util.hpp"

using namespace cuttle;
using namespace cuttle::test;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
const Shape kShapes[] = {{1, 1}, {3, 10}, {128, 10}, {5, 1000}, {700, 33}};

/// log softmax of each row, in double.
Values log_softmax_of(const Values& x, std::size_t classes) {
  Values result;
  for (std::size_t row = 0; row < x.size(); row += classes) {
    const double most = *std::max_element(x.begin() + static_cast<std::ptrdiff_t>(row),
                                          x.begin() + static_cast<std::ptrdiff_t>(row + classes));
    double sum = 0;
    for (std::size_t k = 0; k < classes; ++k) sum += std::exp(x[row + k] - most);
    for (std::size_t k = 0; k < classes; ++k) result.push_back(x[row + k] - most - std::log(sum));
  }
  return result;
}

std::vector<std::int64_t> targets_for(const Shape& shape) {
  std::vector<std::int64_t> targets;
  for (std::int64_t row = 0; row < shape[0]; ++row) targets.push_back(row * 7 % shape[1]);
  return targets;
}

Tensor tensor_of(const std::vector<std::int64_t>& targets) {
  return tensor<std::int64_t>(Values(targets.begin(), targets.end()), {static_cast<std::int64_t>(targets.size())});
}

/// Weights q of -log_softmax in the loss.
Values target_weights(const Shape& shape, const std::vector<std::int64_t>& targets,
                      const CrossEntropyOptions& options) {
  const double classes = static_cast<double>(shape[1]);
  Values q(static_cast<std::size_t>(shape.numel()), options.label_smoothing / classes);
  for (std::size_t row = 0; row < targets.size(); ++row) {
    q[row * static_cast<std::size_t>(shape[1]) + static_cast<std::size_t>(targets[row])] += 1 - options.label_smoothing;
  }
  if (options.reduction == Reduction::mean) {
    for (double& weight : q) weight /= static_cast<double>(shape[0]);
  }
  return q;
}

template <class T> void check_cross_entropy(const Shape& shape, const CrossEntropyOptions& options) {
  CAPTURE(shape.str());
  CAPTURE(options.label_smoothing);
  const Values x = random_values(shape.numel(), 1, 0, 3);
  const std::vector<std::int64_t> targets = targets_for(shape);
  const Values q = target_weights(shape, targets, options),
               log_p = log_softmax_of(x, static_cast<std::size_t>(shape[1]));
  const double weight_of_row = options.reduction == Reduction::mean ? 1.0 / static_cast<double>(shape[0]) : 1;
  double expected = 0;
  Values gradient;
  for (std::size_t i = 0; i < x.size(); ++i) {
    expected -= q[i] * log_p[i];
    gradient.push_back(1.5 * (std::exp(log_p[i]) * weight_of_row - q[i]));
  }
  const Tensor logits = tensor<T>(x, shape), loss = unwritten<T>({}), log_sum_exp = unwritten<T>({shape[0]}),
               dx = unwritten<T>(shape);
  cpu().cross_entropy(logits, tensor_of(targets), options, loss, log_sum_exp, {});
  CHECK(error_of(values<T>(loss), {expected}) < tolerance<T>());
  cpu().cross_entropy_backward(tensor<T>({1.5}, {}), logits, tensor_of(targets), log_sum_exp, options, dx);
  CHECK(error_of(values<T>(dx), gradient, 1.5 * weight_of_row) < tolerance<T>());
}

template <class T> void check_softmax(const Shape& shape) {
  CAPTURE(shape.str());
  const std::size_t classes = static_cast<std::size_t>(shape[1]);
  const Values x = random_values(shape.numel(), 2, 0, 3), dy = random_values(shape.numel(), 3);
  const Values log_p = log_softmax_of(x, classes);
  Values p, d_log, d_soft;
  for (const double value : log_p) p.push_back(std::exp(value));
  for (std::size_t row = 0; row < x.size(); row += classes) {
    double sum = 0, dot = 0;
    for (std::size_t i = row; i < row + classes; ++i) sum += dy[i], dot += dy[i] * p[i];
    for (std::size_t i = row; i < row + classes; ++i) {
      d_log.push_back(dy[i] - p[i] * sum);
      d_soft.push_back(p[i] * (dy[i] - dot));
    }
  }
  const Tensor tx = tensor<T>(x, shape), tdy = tensor<T>(dy, shape), y = unwritten<T>(shape), dx = unwritten<T>(shape);
  cpu().log_softmax(tx, y);
  CHECK(error_of(values<T>(y), log_p) < tolerance<T>());
  cpu().log_softmax_backward(tdy, y, dx);
  CHECK(error_of(values<T>(dx), d_log) < tolerance<T>());
  cpu().softmax(tx, y);
  CHECK(error_of(values<T>(y), p) < tolerance<T>());
  cpu().softmax_backward(tdy, y, dx);
  CHECK(error_of(values<T>(dx), d_soft, largest(dy)) < tolerance<T>());
}

Values softmax_of(const Values& x) {
  const Shape shape{1, static_cast<std::int64_t>(x.size())};
  const Tensor y = unwritten<float>(shape);
  cpu().softmax(tensor<float>(x, shape), y);
  return values<float>(y);
}

double loss_of(const Values& x, std::int64_t target) {
  const Tensor loss = unwritten<float>({}), log_sum_exp = unwritten<float>({1});
  cpu().cross_entropy(tensor<float>(x, {1, static_cast<std::int64_t>(x.size())}), tensor_of({target}), {}, loss,
                      log_sum_exp, {});
  return static_cast<double>(*loss.data<float>());
}

std::int64_t correct(const Values& logits, const std::vector<std::int64_t>& targets) {
  const std::int64_t rows = static_cast<std::int64_t>(targets.size());
  const Tensor count = unwritten<std::int64_t>({}), with_loss = unwritten<std::int64_t>({});
  const Tensor x = tensor<float>(logits, {rows, static_cast<std::int64_t>(logits.size()) / rows});
  cpu().correct_count(x, tensor_of(targets), count);
  cpu().cross_entropy(x, tensor_of(targets), {}, unwritten<float>({}), unwritten<float>({rows}), with_loss);
  CHECK(values<std::int64_t>(with_loss) == values<std::int64_t>(count));
  return *count.data<std::int64_t>();
}

std::string data_error(const std::function<void()>& run) {
  try {
    run();
  } catch (const DataError& error) {
    return error.cause();
  }
  return "no error";
}

}  // namespace

TEST_CASE("softmax, log_softmax and their gradients equal the formula in double") {
  for (const Shape& shape : kShapes) {
    check_softmax<float>(shape);
    check_softmax<double>(shape);
  }
}

TEST_CASE("softmax survives logits that overflow exp, and minus infinity gets probability zero") {
  CHECK(softmax_of({1000, 1000, -1000}) == Values{0.5, 0.5, 0});
  CHECK(softmax_of({-kInf, 3}) == Values{0, 1});
  for (const double p : softmax_of({kNan, 1, 2})) CHECK(std::isnan(p));
  for (const double p : softmax_of({-kInf, -kInf})) CHECK(std::isnan(p));
}

TEST_CASE("cross_entropy and its gradient equal the formula, smoothed and not, as mean and sum") {
  for (const Shape& shape : kShapes) {
    for (const double smoothing : {0.0, 0.1, 1.0}) {
      for (const Reduction reduction : {Reduction::mean, Reduction::sum}) {
        check_cross_entropy<float>(shape, {smoothing, reduction});
        check_cross_entropy<double>(shape, {smoothing, reduction});
      }
    }
  }
}

TEST_CASE("cross_entropy of sure logits is exact at both ends") {
  CHECK(loss_of({0, 200, 0}, 1) == 0);
  CHECK(loss_of({0, 200, 0}, 0) == 200);
  CHECK(loss_of({1e4f, 1e4f}, 0) == doctest::Approx(std::log(2)).epsilon(1e-6));
  CHECK(loss_of({12, 0}, 0) == doctest::Approx(std::log1p(std::exp(-12))).epsilon(1e-2));
}

TEST_CASE("a target outside the classes is an error that names row and value") {
  const Tensor logits = tensor<float>(Values(30, 0), {3, 10}), loss = unwritten<float>({}), lse = unwritten<float>({3}),
               dx = unwritten<float>({3, 10}), count = unwritten<std::int64_t>({});
  const Tensor high = tensor_of({0, 9, 10}), low = tensor_of({0, -1, 3});
  CHECK(data_error([&] { cpu().cross_entropy(logits, high, {}, loss, lse, {}); }) ==
        "cross_entropy: target 10 in row 2 is outside [0,10)");
  CHECK(data_error([&] { cpu().cross_entropy(logits, low, {}, loss, lse, {}); }) ==
        "cross_entropy: target -1 in row 1 is outside [0,10)");
  CHECK(data_error([&] { cpu().cross_entropy_backward(tensor<float>({1}, {}), logits, high, lse, {}, dx); }) ==
        "cross_entropy backward: target 10 in row 2 is outside [0,10)");
  CHECK(data_error([&] { cpu().correct_count(logits, low, count); }) ==
        "correct_count: target -1 in row 1 is outside [0,10)");
}

TEST_CASE("correct_count takes the first of equals and NaN as the largest") {
  CHECK(correct({1, 3, 3, 5, 5, 2, 0, 0, 0}, {1, 0, 0}) == 3);
  CHECK(correct({1, 3, 3, 5, 5, 2, 0, 0, 0}, {2, 1, 1}) == 0);
  CHECK(correct({1, kNan, 3}, {1}) == 1);
  CHECK(correct({kNan, kNan, 3}, {0}) == 1);
  CHECK(correct(Values(100'000 * 3, 0), std::vector<std::int64_t>(100'000, 0)) == 100'000);
}
