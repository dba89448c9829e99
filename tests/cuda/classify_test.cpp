#include <algorithm>
#include <limits>

#include "cuda/twin.hpp"
#include "cuttle/ops.hpp"

using namespace cuttle;
using namespace cuttle::test;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

struct Size {
  std::int64_t rows, classes;
};
/// A warp and a block to a row; one block and several.
constexpr Size kSizes[] = {{1, 1}, {5, 7}, {130, 10}, {3, 1000}, {5000, 10}, {7, 1025}, {3, 5003}, {300, 2000}};

Tensor logits_of(Size size, DType dtype, double scale) {
  return rounded(random_values(size.rows * size.classes, 21, 0, scale), {size.rows, size.classes}, dtype);
}

Tensor targets_of(Size size) {
  std::vector<std::int64_t> targets;
  for (std::int64_t i = 0; i < size.rows; ++i) targets.push_back(i * 7919 % size.classes);
  return Tensor::from(targets, {size.rows});
}

struct Loss {
  Tensor loss, log_sum_exp, gradient, correct;
};

/// The gradient is that of 3 * loss.
Loss cross_entropy_of(const Kernels& k, const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options,
                      const Tensor& gradient) {
  const TensorOptions wide{logits.dtype() == DType::f64 ? DType::f64 : DType::f32, logits.device()};
  Loss result{Tensor::full({}, 77, wide), Tensor::full({logits.size(0)}, 77, wide), gradient,
              Tensor::full({}, 77, {DType::i64, logits.device()})};
  k.cross_entropy(logits, targets, options, result.loss, result.log_sum_exp, result.correct);
  k.cross_entropy_backward(Tensor::scalar(3, wide), logits, targets, result.log_sum_exp, options, gradient);
  return result;
}

Loss on_gpu_of(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options,
               std::int64_t offset = 0) {
  return cross_entropy_of(on_gpu(), logits, targets, options,
                          output(logits.shape(), logits.dtype(), Layout::nhwc, offset));
}

}  // namespace

TEST_CASE("cuda: softmax, its logarithm and their gradients are right for few and many classes") {
  for (const Variant& v : variants(false)) {
    for (const Size size : kSizes) {
      CAPTURE(v.str());
      CAPTURE(size.classes);
      const Tensor x = logits_of(size, v.dtype, 3), there = upload(x, v.offset);
      const Tensor dy = logits_of(size, v.dtype, 1);
      const auto check = [&](auto forward, auto backward) {
        const Tensor y = Tensor::empty(x.shape(), {DType::f64}), dx = Tensor::empty(x.shape(), {DType::f64});
        const Tensor out = output(x.shape(), v.dtype, Layout::nhwc, v.offset);
        const Tensor gradient = output(x.shape(), v.dtype, Layout::nhwc, v.offset);
        (cpu().*forward)(x.to(DType::f64), y);
        (on_gpu().*forward)(there, out);
        CHECK(excess(out, from(y)) <= 1);
        // Both from the same output: what rounding it costs is no matter here.
        const Tensor same = y.to(v.dtype);
        (cpu().*backward)(dy.to(DType::f64), same.to(DType::f64), dx);
        (on_gpu().*backward)(upload(dy, v.offset), upload(same, v.offset), gradient);
        CHECK(excess(gradient, from(dx)) <= 3);
      };
      check(&Kernels::log_softmax, &Kernels::log_softmax_backward);
      check(&Kernels::softmax, &Kernels::softmax_backward);
    }
  }
}

TEST_CASE("cuda: softmax of a row that holds NaN or plus infinity is NaN there and nowhere else") {
  Values numbers(3 * 40, 0.5);
  numbers[47] = kNan;
  numbers[99] = kInf;
  numbers[3] = -kInf;
  const Tensor x = rounded(numbers, {3, 40}, DType::f32).to(gpu()), y = output({3, 40}, DType::f32);
  on_gpu().softmax(x, y);
  const Values result = from(y);
  CHECK(result[3] == 0);
  for (std::size_t i = 0; i < 40; ++i) {
    CHECK((i == 3 || result[i] == doctest::Approx(1.0 / 39)));
    CHECK(std::isnan(result[40 + i]));
    CHECK(std::isnan(result[80 + i]));
  }
}

TEST_CASE("cuda: cross-entropy and its gradient are right with smoothing, mean and sum") {
  for (const Variant& v : variants(false)) {
    for (const Size size : kSizes) {
      const Tensor logits = logits_of(size, v.dtype, 4), targets = targets_of(size), there = upload(logits, v.offset);
      for (const CrossEntropyOptions& options : {CrossEntropyOptions{}, CrossEntropyOptions{0.1, Reduction::mean},
                                                 CrossEntropyOptions{0.3, Reduction::sum}}) {
        CAPTURE(v.str());
        CAPTURE(size.classes);
        CAPTURE(options.label_smoothing);
        const Loss exact = cross_entropy_of(cpu(), logits.to(DType::f64), targets, options,
                                            Tensor::empty(logits.shape(), {DType::f64}));
        const Loss loss = on_gpu_of(there, upload(targets, v.offset), options, v.offset);
        CHECK(excess(loss.loss, from(exact.loss)) <= 1);
        CHECK(excess(loss.log_sum_exp, from(exact.log_sum_exp)) <= 1);
        CHECK(loss.correct.item<std::int64_t>() == exact.correct.item<std::int64_t>());
        // Probabilities less targets cancel (to nothing where there is one class): errors are a fraction of 1, not of
        // them.
        const double one = options.reduction == Reduction::mean ? 3.0 / static_cast<double>(size.rows) : 3;
        CHECK(error_of(from(loss.gradient), from(exact.gradient), one) <= rounding(v.dtype) + 4e-6);
        CHECK(from(on_gpu_of(there, targets.to(gpu()), options).loss) == from(loss.loss));
      }
    }
  }
}

TEST_CASE("cuda: a target outside the classes makes the loss and its row's gradient NaN, and spoils nothing else") {
  for (const Size size : {Size{200, 10}, Size{6, 1500}}) {
    for (const std::int64_t bad : {std::int64_t{-1}, size.classes, std::numeric_limits<std::int64_t>::max()}) {
      const Tensor logits = logits_of(size, DType::f32, 2).to(gpu());
      std::vector<std::int64_t> targets = targets_of(size).to_vector<std::int64_t>();
      const Loss good = on_gpu_of(logits, Tensor::from(targets, {size.rows}).to(gpu()), {0.1});
      const Values expected = from(good.gradient);
      targets[3] = bad;
      const Tensor with_bad = Tensor::from(targets, {size.rows}).to(gpu());
      const Loss loss = on_gpu_of(logits, with_bad, {0.1});
      CHECK(std::isnan(loss.loss.item<double>()));
      const Values gradient = from(loss.gradient);
      const std::size_t classes = static_cast<std::size_t>(size.classes);
      std::size_t wrong = 0;
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        wrong += i / classes == 3 ? !std::isnan(gradient[i]) : gradient[i] != expected[i];
      }
      CHECK(wrong == 0);
      // The next launch finds everything as it should be.
      CHECK(from(on_gpu_of(logits, targets_of(size).to(gpu()), {0.1}).loss) == from(good.loss));
    }
  }
}

TEST_CASE("cuda: correct_count is the CPU's: the first of equals wins, NaN above all") {
  for (const Variant& v : variants(false)) {
    for (const Size size : kSizes) {
      CAPTURE(v.str());
      CAPTURE(size.classes);
      Values numbers = random_values(size.rows * size.classes, 22);
      for (double& value : numbers) value = std::round(value);  // many equals
      for (std::size_t i = 0; i < numbers.size(); i += 31) numbers[i] = kNan;
      for (std::size_t i = 5; i < numbers.size(); i += 37) numbers[i] = kInf;
      const Tensor logits = rounded(numbers, {size.rows, size.classes}, v.dtype);
      // Half of the targets are right.
      std::vector<std::int64_t> targets = targets_of(size).to_vector<std::int64_t>();
      const std::vector<float> rows = logits.to_vector<float>();
      for (std::size_t row = 0; row < targets.size(); row += 2) {
        const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(row) * size.classes, end = begin + size.classes;
        const auto nan = std::find_if(begin, end, [](float value) { return value != value; });
        targets[row] = (nan != end ? nan : std::max_element(begin, end)) - begin;
      }
      const Tensor labels = Tensor::from(targets, {size.rows});
      const Tensor expected = Tensor::empty({}, {DType::i64}), out = output({}, DType::i64);
      cpu().correct_count(logits.to(DType::f32), labels, expected);
      on_gpu().correct_count(upload(logits, v.offset), upload(labels, v.offset), out);
      CHECK(expected.item<std::int64_t>() >= (size.rows + 1) / 2);
      CHECK(out.item<std::int64_t>() == expected.item<std::int64_t>());
      const Tensor loss = output({}, DType::f32), lse = output({size.rows}, DType::f32),
                   beside = output({}, DType::i64);
      on_gpu().cross_entropy(upload(logits, v.offset), upload(labels, v.offset), {}, loss, lse, beside);
      CHECK(beside.item<std::int64_t>() == expected.item<std::int64_t>());
      on_gpu().cross_entropy(upload(logits, v.offset), upload(labels, v.offset), {}, loss, lse, {});
    }
  }
  const Tensor logits = tensor<float>({1, 2, 3, 1, 2, 3}, {2, 3}).to(gpu()), out = output({}, DType::i64);
  on_gpu().correct_count(logits, Tensor::from(std::vector<std::int64_t>{3, 2}, {2}).to(gpu()), out);
  CHECK(out.item<std::int64_t>() == 1);
}
