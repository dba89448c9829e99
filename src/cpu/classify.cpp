#include <fmt/format.h>

#include <cmath>

#include "cpu/dispatch.hpp"
#include "cpu/eigen.hpp"
#include "cpu/elementwise.hpp"
#include "cpu/register.hpp"
#include "kernels.hpp"

namespace cuttle::cpu {
namespace {

template <class T> using Row = Eigen::Map<Eigen::Array<T, 1, Eigen::Dynamic>>;
template <class T> using ConstRow = Eigen::Map<const Eigen::Array<T, 1, Eigen::Dynamic>>;

/// Calls body(row of in, row of in2, row of out) over [N,K] tensors; in2 may be in.
template <class Body> void for_rows(const char* op, const Tensor& in, const Tensor& in2, const Tensor& out, Body body) {
  const std::int64_t classes = in.size(1);
  dispatch_floating(op, in, [&]<class T>(T) {
    const T *a = in.data<T>(), *b = in2.data<T>();
    T* to = writable<T>(out);
    parallel_for(in.size(0), row_grain(classes), [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin * classes; i < end * classes; i += classes) {
        body(ConstRow<T>(a + i, classes), ConstRow<T>(b + i, classes), Row<T>(to + i, classes));
      }
    });
  });
}

/// log(sum(exp(x))) as max + log_sum: apart, the two keep digits that their sum loses.
template <class T> struct LogSumExp {
  T max, log_sum;
  explicit LogSumExp(const ConstRow<T>& x) : max(x.maxCoeff()), log_sum(std::log((x - max).exp().sum())) {}
};

void log_softmax(const Tensor& x, const Tensor& y) {
  for_rows("log_softmax", x, x, y, []<class T>(const ConstRow<T>& in, const ConstRow<T>&, Row<T> out) {
    const LogSumExp<T> lse(in);
    out = (in - lse.max) - lse.log_sum;
  });
}

void log_softmax_backward(const Tensor& dy, const Tensor& y, const Tensor& dx) {
  for_rows("log_softmax backward", dy, y, dx,
           []<class T>(const ConstRow<T>& gradient, const ConstRow<T>& output, Row<T> result) {
             result = gradient - output.exp() * gradient.sum();
           });
}

void softmax(const Tensor& x, const Tensor& y) {
  for_rows("softmax", x, x, y, []<class T>(const ConstRow<T>& in, const ConstRow<T>&, Row<T> out) {
    out = (in - in.maxCoeff()).exp();
    out /= out.sum();
  });
}

void softmax_backward(const Tensor& dy, const Tensor& y, const Tensor& dx) {
  for_rows("softmax backward", dy, y, dx,
           []<class T>(const ConstRow<T>& gradient, const ConstRow<T>& output, Row<T> result) {
             result = output * (gradient - (gradient * output).sum());
           });
}

const std::int64_t* checked_targets(const char* op, const Tensor& targets, std::int64_t classes) {
  const std::int64_t* target = targets.data<std::int64_t>();
  for (std::int64_t row = 0; row < targets.numel(); ++row) {
    if (target[row] < 0 || target[row] >= classes) {
      throw DataError(
          fmt::format("{}: target {} in row {} is outside [0,{})", op, target[row], row, classes),
          "labels count from 0 and the last layer needs an output for each; check the labels of the data set");
    }
  }
  return target;
}

/// Index of the largest value, the first of equals; NaN counts as the largest, as in PyTorch.
template <class T> std::int64_t argmax(const T* x, std::int64_t n) {
  std::int64_t best = 0;
  for (std::int64_t i = 1; i < n && x[best] == x[best]; ++i) {
    if (x[i] > x[best] || x[i] != x[i]) best = i;
  }
  return best;
}

void correct_count(const Tensor& logits, const Tensor& targets, const Tensor& out) {
  const std::int64_t rows = logits.size(0), classes = logits.size(1);
  const std::int64_t* target = checked_targets("correct_count", targets, classes);
  dispatch_floating("correct_count", logits, [&]<class T>(T) {
    const T* x = logits.data<T>();
    const double correct = sum_blocks(rows, row_grain(classes), [=](std::int64_t begin, std::int64_t end) {
      double count = 0;
      for (std::int64_t row = begin; row < end; ++row) count += argmax(x + row * classes, classes) == target[row];
      return count;
    });
    *writable<std::int64_t>(out) = static_cast<std::int64_t>(correct);
  });
}

/// -sum over k of q_k log_softmax(x)_k, where q is 1 - smoothing at the target plus smoothing/K everywhere.
void cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options, const Tensor& loss,
                   const Tensor& log_sum_exp, const Tensor& correct) {
  const std::int64_t rows = logits.size(0), classes = logits.size(1);
  const std::int64_t* target = checked_targets("cross_entropy", targets, classes);
  dispatch_floating("cross_entropy", logits, [&]<class T>(T) {
    const T* x = logits.data<T>();
    T* kept = writable<T>(log_sum_exp);
    const double smoothing = options.label_smoothing;
    double total = sum_blocks(rows, row_grain(classes), [=](std::int64_t begin, std::int64_t end) {
      double sum = 0;
      for (std::int64_t row = begin; row < end; ++row) {
        const ConstRow<T> in(x + row * classes, classes);
        const LogSumExp<T> lse(in);
        kept[row] = lse.max + lse.log_sum;
        // in - max first: it is exact near the maximum, where the loss is small
        double expected = (1 - smoothing) * static_cast<double>(in[target[row]] - lse.max);
        if (smoothing != 0) expected += smoothing * static_cast<double>((in - lse.max).mean());
        sum += static_cast<double>(lse.log_sum) - expected;
      }
      return sum;
    });
    if (options.reduction == Reduction::mean) total /= static_cast<double>(rows);
    *writable<T>(loss) = static_cast<T>(total);
  });
  if (correct.defined()) correct_count(logits, targets, correct);
}

/// (softmax(x) - q) * d_loss, divided by N for the mean.
void cross_entropy_backward(const Tensor& d_loss, const Tensor& logits, const Tensor& targets,
                            const Tensor& log_sum_exp, const CrossEntropyOptions& options, const Tensor& d_logits) {
  const std::int64_t rows = logits.size(0), classes = logits.size(1);
  const std::int64_t* target = checked_targets("cross_entropy backward", targets, classes);
  dispatch_floating("cross_entropy backward", logits, [&]<class T>(T) {
    const T *x = logits.data<T>(), *lse = log_sum_exp.data<T>();
    T* dx = writable<T>(d_logits);
    const T smooth = static_cast<T>(options.label_smoothing / static_cast<double>(classes));
    const T hit = static_cast<T>(1 - options.label_smoothing);
    const T factor = *d_loss.data<T>() / static_cast<T>(options.reduction == Reduction::mean ? rows : 1);
    parallel_for(rows, row_grain(classes), [=](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const ConstRow<T> in(x + row * classes, classes);
        Row<T> out(dx + row * classes, classes);
        out = ((in - lse[row]).exp() - smooth) * factor;
        out[target[row]] -= hit * factor;
      }
    });
  });
}

}  // namespace

void register_classify(Kernels& k) {
  k.log_softmax = log_softmax;
  k.log_softmax_backward = log_softmax_backward;
  k.softmax = softmax;
  k.softmax_backward = softmax_backward;
  k.cross_entropy = cross_entropy;
  k.cross_entropy_backward = cross_entropy_backward;
  k.correct_count = correct_count;
}

}  // namespace cuttle::cpu
