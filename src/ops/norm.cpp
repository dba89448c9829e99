#include <fmt/format.h>

#include "autograd/node.hpp"
#include "kernels.hpp"
#include "ops/check.hpp"

namespace cuttle {

using autograd::Gradients;
using autograd::Saved;

namespace {

constexpr const char* kOp = "batch_norm2d";

/// Undefined where `like` is, or where nobody wants it.
Tensor gradient_like(const Tensor& like, bool wanted) {
  return like.defined() && wanted ? Tensor::empty(like.shape(), like.options()) : Tensor();
}

void give_if(Gradients& in, std::size_t i, Tensor g) {
  if (g.defined()) in.give(i, std::move(g));
}

Tensor train(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
             const Tensor& running_var, const BatchNorm2dOptions& options, TensorOptions statistics) {
  const std::int64_t values = x.size(0) * x.size(2) * x.size(3);
  if (values < 2) {
    throw ShapeError(fmt::format("{}: {} has {} value{} a channel, training needs more than 1 for a variance", kOp,
                                 x.str(), values, values == 1 ? "" : "s"),
                     "use a larger batch, or eval()");
  }
  Tensor y = Tensor::empty(x.shape(), x.options());
  const Tensor mean = Tensor::empty({x.size(1)}, statistics), inv_std = Tensor::empty({x.size(1)}, statistics);
  if (y.numel() > 0) {
    kernels(x).batch_norm_train(x, weight, bias, running_mean, running_var, options, y, mean, inv_std);
  }
  for (const Tensor* running : {&running_mean, &running_var}) {
    if (running->defined()) autograd::mark_changed(kOp, *running);
  }
  if (autograd::recording({&x, &weight, &bias})) {
    const Saved saved_x(x), saved_weight = weight.defined() ? Saved(weight) : Saved();
    autograd::record(kOp, y, {&x, &weight, &bias},
                     [saved_x, saved_weight, weight_defined = weight.defined(),
                      bias_like = bias.defined() ? bias.detach() : bias, mean, inv_std](Tensor dy, Gradients& in) {
                       const Tensor& x = saved_x.get(kOp);
                       const Tensor weight = weight_defined ? saved_weight.get(kOp) : Tensor();
                       Tensor dx = Tensor::empty(x.shape(), x.options());
                       Tensor d_weight = gradient_like(weight, in.needed(1));
                       Tensor d_bias = gradient_like(bias_like, in.needed(2));
                       if (x.numel() > 0) {
                         kernels(dy).batch_norm_train_backward(dy, x, weight, mean, inv_std, dx, d_weight, d_bias);
                       }
                       if (in.needed(0)) in.give(0, std::move(dx));
                       give_if(in, 1, std::move(d_weight));
                       give_if(in, 2, std::move(d_bias));
                     });
  }
  return y;
}

Tensor eval(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
            const Tensor& running_var, double eps) {
  Tensor y = Tensor::empty(x.shape(), x.options());
  if (y.numel() > 0) kernels(x).batch_norm_eval(x, weight, bias, running_mean, running_var, eps, y);
  if (autograd::recording({&x, &weight, &bias})) {
    const Saved saved_x(x), saved_weight = weight.defined() ? Saved(weight) : Saved();
    const Saved saved_mean(running_mean), saved_var(running_var);
    autograd::record(kOp, y, {&x, &weight, &bias},
                     [saved_x, saved_weight, saved_mean, saved_var, weight_defined = weight.defined(),
                      bias_like = bias.defined() ? bias.detach() : bias, eps](Tensor dy, Gradients& in) {
                       const Tensor& x = saved_x.get(kOp);
                       const Tensor weight = weight_defined ? saved_weight.get(kOp) : Tensor();
                       Tensor dx = gradient_like(x, in.needed(0));
                       Tensor d_weight = gradient_like(weight, in.needed(1));
                       Tensor d_bias = gradient_like(bias_like, in.needed(2));
                       if (x.numel() > 0) {
                         kernels(dy).batch_norm_eval_backward(dy, x, weight, saved_mean.get(kOp), saved_var.get(kOp),
                                                              eps, dx, d_weight, d_bias);
                       } else {
                         if (d_weight.defined()) d_weight.zero_();
                         if (d_bias.defined()) d_bias.zero_();
                       }
                       give_if(in, 0, std::move(dx));
                       give_if(in, 1, std::move(d_weight));
                       give_if(in, 2, std::move(d_bias));
                     });
  }
  return y;
}

}  // namespace

Tensor batch_norm2d(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor running_mean, Tensor running_var,
                    BatchNorm2dOptions options) {
  check::rank(kOp, "input", x, 4);
  check::floating(kOp, x);
  check::same_device(kOp, {&x, &weight, &bias, &running_mean, &running_var});
  const Shape channels{x.size(1)};
  // Statistics and parameters are f32 whatever the activations are, but f64 for gradient checks.
  const TensorOptions statistics{x.dtype() == DType::f64 ? DType::f64 : DType::f32, x.device(), x.layout()};
  const std::pair<const char*, const Tensor*> vectors[] = {
      {"weight", &weight}, {"bias", &bias}, {"running_mean", &running_mean}, {"running_var", &running_var}};
  for (const auto& [what, t] : vectors) {
    check::shape_if_defined(kOp, what, *t, channels);
    if (t->defined()) check::dtype(kOp, what, *t, statistics.dtype);
  }
  if (running_mean.defined() != running_var.defined()) {
    throw ShapeError(fmt::format("{}: only one of running_mean and running_var is given", kOp));
  }
  if (!(options.eps >= 0)) throw UsageError(fmt::format("{}: eps {} is negative", kOp, options.eps));
  if (options.training) return train(x, weight, bias, running_mean, running_var, options, statistics);
  if (!running_mean.defined()) {
    throw ShapeError(fmt::format("{}: evaluation needs running statistics", kOp),
                     "pass running_mean and running_var, or train");
  }
  return eval(x, weight, bias, running_mean, running_var, options.eps);
}

}  // namespace cuttle
