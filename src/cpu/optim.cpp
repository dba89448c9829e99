#include <cmath>

#include "cpu/dispatch.hpp"
#include "cpu/eigen.hpp"
#include "cpu/elementwise.hpp"
#include "cpu/register.hpp"
#include "kernels.hpp"

namespace cuttle::cpu {
namespace {

template <class T> using Array = Eigen::Map<Eigen::Array<T, Eigen::Dynamic, 1>>;
template <class T> using ConstArray = Eigen::Map<const Eigen::Array<T, Eigen::Dynamic, 1>>;

std::int64_t step_of(const Tensor& step) { return *step.data<std::int64_t>(); }
double rate_of(const Tensor& lr) { return static_cast<double>(*lr.data<float>()); }

/// Calls body(begin, n) over blocks that stay in the cache while several expressions pass over them.
template <class Body> void for_cached_blocks(std::int64_t n, Body body) {
  constexpr std::int64_t kBlock = 2048;
  parallel_for(n, kElementGrain, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; i += kBlock) body(i, std::min(kBlock, end - i));
  });
}

void sgd_step(Tensors params, Tensors grads, Tensors buffers, std::span<const double> decay,
              const Kernels::SgdHyper& hyper, const Tensor& lr, const Tensor& step) {
  const bool first = step_of(step) == 1;
  for (std::size_t i = 0; i < params.size(); ++i) {
    dispatch_floating("sgd step", params[i], [&]<class T>(T) {
      const T rate = static_cast<T>(rate_of(lr)), weight_decay = static_cast<T>(decay[i]);
      const T momentum = static_cast<T>(hyper.momentum), gain = static_cast<T>(1 - hyper.dampening);
      const bool nesterov = hyper.nesterov;
      T* param = writable<T>(params[i]);
      const T* grad = grads[i].data<T>();
      T* buffer = buffers.empty() ? nullptr : writable<T>(buffers[i]);
      for_cached_blocks(params[i].numel(), [=](std::int64_t begin, std::int64_t n) {
        Array<T> p(param + begin, n);
        const auto g = ConstArray<T>(grad + begin, n) + weight_decay * p;
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
}

void adamw_step(Tensors params, Tensors grads, Tensors exp_avg, Tensors exp_avg_sq, std::span<const double> decay,
                const Kernels::AdamWHyper& hyper, const Tensor& lr, const Tensor& step) {
  const double t = static_cast<double>(step_of(step)), rate = rate_of(lr);
  const double correction1 = 1 - std::pow(hyper.beta1, t), correction2 = 1 - std::pow(hyper.beta2, t);
  for (std::size_t i = 0; i < params.size(); ++i) {
    dispatch_floating("adamw step", params[i], [&]<class T>(T) {
      const T keep = static_cast<T>(1 - rate * decay[i]), step_size = static_cast<T>(rate / correction1);
      const T beta1 = static_cast<T>(hyper.beta1), gain1 = static_cast<T>(1 - hyper.beta1);
      const T beta2 = static_cast<T>(hyper.beta2), gain2 = static_cast<T>(1 - hyper.beta2);
      const T root_scale = static_cast<T>(1 / std::sqrt(correction2)), eps = static_cast<T>(hyper.eps);
      T *param = writable<T>(params[i]), *first = writable<T>(exp_avg[i]), *second = writable<T>(exp_avg_sq[i]);
      const T* grad = grads[i].data<T>();
      for_cached_blocks(params[i].numel(), [=](std::int64_t begin, std::int64_t n) {
        Array<T> p(param + begin, n), m(first + begin, n), v(second + begin, n);
        const ConstArray<T> g(grad + begin, n);
        m = beta1 * m + gain1 * g;
        v = beta2 * v + gain2 * g.square();
        p = keep * p - step_size * m / (v.sqrt() * root_scale + eps);
      });
    });
  }
}

void increment(const Tensor& counter) { ++*writable<std::int64_t>(counter); }

void global_norm(Tensors tensors, const Tensor& norm) {
  double squares = 0;
  for (const Tensor& t : tensors) {
    dispatch_floating("gradient norm", t, [&]<class T>(T) {
      squares += sum_terms(t.data<T>(), t.numel(), [](double value) { return value * value; });
    });
  }
  *writable<float>(norm) = static_cast<float>(std::sqrt(squares));
}

void clip_by_norm(Tensors tensors, const Tensor& norm, double max_norm) {
  const double factor = max_norm / (static_cast<double>(*norm.data<float>()) + 1e-6);
  if (factor >= 1) return;  // false for NaN: a norm that is NaN makes every gradient NaN, as in PyTorch
  for (const Tensor& t : tensors) {
    dispatch_floating("gradient clipping", t, [&]<class T>(T) {
      map(t.data<T>(), writable<T>(t), t.numel(), [f = static_cast<T>(factor)](T value) { return value * f; });
    });
  }
}

}  // namespace

void register_optim(Kernels& k) {
  k.sgd_step = sgd_step;
  k.adamw_step = adamw_step;
  k.increment = increment;
  k.global_norm = global_norm;
  k.clip_by_norm = clip_by_norm;
}

}  // namespace cuttle::cpu
