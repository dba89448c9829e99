#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "cpu/dispatch.hpp"
#include "cpu/eigen.hpp"
#include "cpu/elementwise.hpp"
#include "cpu/register.hpp"
#include "kernels.hpp"

namespace cuttle::cpu {
namespace {

template <class T> using Array = Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>;
template <class T> using ConstArray = Eigen::Map<const Eigen::Array<T, Eigen::Dynamic, 1>>;

/// Counts the update; returns its number, from 1 on.
std::int64_t count_update(const Tensor& step) { return ++*writable<std::int64_t>(step); }
double rate_of(const Tensor& lr) { return static_cast<double>(*lr.data<float>()); }

/// What multiplies the gradients; nothing where the step is to be skipped.
std::optional<double> factor_of(const Tensor& factor) {
  const double value = factor.defined() ? static_cast<double>(*factor.data<float>()) : 1.0;
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

Tensor in_dtype(const Tensor& t, DType dtype) {
  if (t.dtype() == dtype) return t;
  const Tensor converted = Tensor::empty(t.shape(), {dtype, t.device(), t.layout()});
  convert(t, converted);
  return converted;
}

/// Arithmetic is done in f32 or f64; other floating types are only stored.
Tensor computable(const Tensor& t) { return in_dtype(t, t.dtype() == DType::f64 ? DType::f64 : DType::f32); }

void rewrite_copies(const Kernels::Update& update) {
  for (std::size_t i = 0; i < update.copies.size(); ++i) {
    if (update.copies[i].defined()) convert(update.params[i], update.copies[i]);
  }
}

/// Calls body(begin, n) over blocks that stay in the cache while several expressions pass over them.
template <class Body> void for_cached_blocks(std::int64_t n, Body body) {
  constexpr std::int64_t kBlock = 2048;
  parallel_for(n, kElementGrain, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; i += kBlock) body(i, std::min(kBlock, end - i));
  });
}

void sgd_step(const Kernels::Update& update, Tensors buffers, const Kernels::SgdHyper& hyper) {
  const std::optional<double> factor = factor_of(update.factor);
  if (!factor) return;
  const bool first = count_update(update.step) == 1;
  for (std::size_t i = 0; i < update.params.size(); ++i) {
    const Tensor& p = update.params[i];
    const Tensor gradient = in_dtype(update.grads[i], p.dtype());
    dispatch_floating("sgd step", p, [&]<class T>(T) {
      const T rate = static_cast<T>(rate_of(update.lr)), weight_decay = static_cast<T>(update.decay[i]);
      const T momentum = static_cast<T>(hyper.momentum), gain = static_cast<T>(1 - hyper.dampening);
      const T scale = static_cast<T>(*factor);
      const bool nesterov = hyper.nesterov;
      T* param = writable<T>(p);
      const T* grad = gradient.data<T>();
      T* buffer = buffers.empty() ? nullptr : writable<T>(buffers[i]);
      for_cached_blocks(p.numel(), [=](std::int64_t begin, std::int64_t n) {
        Array<T> p(param + begin, n);
        const auto g = scale * ConstArray<T>(grad + begin, n) + weight_decay * p;
        if (!buffer) {
          p -= rate * g;
          return;
        }
        Array<T> b(buffer + begin, n);
        if (first) {
          b = g;
        } else {
          b = momentum * b + gain * g;
        }
        if (nesterov) {
          p -= rate * (g + momentum * b);
        } else {
          p -= rate * b;
        }
      });
    });
  }
  rewrite_copies(update);
}

void adamw_step(const Kernels::Update& update, Tensors exp_avg, Tensors exp_avg_sq, const Kernels::AdamWHyper& hyper) {
  const std::optional<double> factor = factor_of(update.factor);
  if (!factor) return;
  const double t = static_cast<double>(count_update(update.step)), rate = rate_of(update.lr);
  const double correction1 = 1 - std::pow(hyper.beta1, t), correction2 = 1 - std::pow(hyper.beta2, t);
  for (std::size_t i = 0; i < update.params.size(); ++i) {
    const Tensor& p = update.params[i];
    const Tensor gradient = in_dtype(update.grads[i], p.dtype());
    dispatch_floating("adamw step", p, [&]<class T>(T) {
      const T keep = static_cast<T>(1 - rate * update.decay[i]), step_size = static_cast<T>(rate / correction1);
      const T beta1 = static_cast<T>(hyper.beta1), gain1 = static_cast<T>(1 - hyper.beta1);
      const T beta2 = static_cast<T>(hyper.beta2), gain2 = static_cast<T>(1 - hyper.beta2);
      const T root_scale = static_cast<T>(1 / std::sqrt(correction2)), eps = static_cast<T>(hyper.eps);
      const T scale = static_cast<T>(*factor);
      T *param = writable<T>(p), *first = writable<T>(exp_avg[i]), *second = writable<T>(exp_avg_sq[i]);
      const T* grad = gradient.data<T>();
      for_cached_blocks(p.numel(), [=](std::int64_t begin, std::int64_t n) {
        Array<T> p(param + begin, n), m(first + begin, n), v(second + begin, n);
        const auto g = scale * ConstArray<T>(grad + begin, n);
        m = beta1 * m + gain1 * g;
        v = beta2 * v + gain2 * g.square();
        p = keep * p - step_size * m / (v.sqrt() * root_scale + eps);
      });
    });
  }
  rewrite_copies(update);
}

void global_norm(Tensors tensors, const Tensor& norm) {
  double squares = 0;
  for (const Tensor& t : tensors) {
    const Tensor values = computable(t);
    dispatch_floating("gradient norm", values, [&]<class T>(T) {
      squares += sum_terms(values.data<T>(), values.numel(), [](double value) { return value * value; });
    });
  }
  *writable<float>(norm) = static_cast<float>(std::sqrt(squares));
}

void gradient_factor(Tensors gradients, const Tensor& norm, const Tensor& scale, const Tensor& counts, double max_norm,
                     const Kernels::LossScaleRule& rule, const Tensor& factor) {
  global_norm(gradients, norm);
  const double inverse = scale.defined() ? 1 / static_cast<double>(*scale.data<float>()) : 1;
  float& stored_norm = *writable<float>(norm);
  const bool good = std::isfinite(stored_norm);
  stored_norm = static_cast<float>(static_cast<double>(stored_norm) * inverse);
  const double clip = max_norm > 0 ? std::min(1.0, max_norm / (static_cast<double>(stored_norm) + 1e-6)) : 1;
  *writable<float>(factor) = good ? static_cast<float>(inverse * clip) : std::numeric_limits<float>::quiet_NaN();
  if (!scale.defined()) return;

  float& value = *writable<float>(scale);
  std::int64_t* in_a_row = writable<std::int64_t>(counts);  // good steps since the latest change, skipped steps
  double next = static_cast<double>(value);
  if (!good) {
    next *= rule.backoff;
    in_a_row[0] = 0;
    ++in_a_row[1];
  } else {
    in_a_row[1] = 0;
    if (++in_a_row[0] >= rule.interval) {
      next *= rule.growth;
      in_a_row[0] = 0;
    }
  }
  value = static_cast<float>(std::clamp(next, rule.least, rule.most));
}

void clip_by_norm(Tensors tensors, const Tensor& norm, double max_norm) {
  const double factor = max_norm / (static_cast<double>(*norm.data<float>()) + 1e-6);
  if (factor >= 1) return;  // false for NaN: a norm that is NaN makes every gradient NaN, as in PyTorch
  for (const Tensor& t : tensors) {
    const Tensor values = computable(t);
    dispatch_floating("gradient clipping", values, [&]<class T>(T) {
      map(values.data<T>(), writable<T>(values), values.numel(),
          [f = static_cast<T>(factor)](T value) { return value * f; });
    });
    if (values.impl() != t.impl()) convert(values, t);
  }
}

}  // namespace

void register_optim(Kernels& k) {
  k.sgd_step = sgd_step;
  k.adamw_step = adamw_step;
  k.gradient_factor = gradient_factor;
  k.global_norm = global_norm;
  k.clip_by_norm = clip_by_norm;
}

}  // namespace cuttle::cpu
