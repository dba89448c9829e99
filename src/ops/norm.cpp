#include "ops/norm.hpp"

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

Saved saved_if(const Tensor& t, bool wanted) { return t.defined() && wanted ? Saved(t) : Saved(); }

/// Where a kernel may put dy + dy2.
Tensor place_of_sum(const Tensor& dy, const Tensor& dy2) {
  return is_exclusive(dy) ? dy : is_exclusive(dy2) ? dy2 : Tensor::empty(dy.shape(), dy.options());
}

/// What both backward passes have in common.
struct Kept {
  Saved x, y, weight, bias;
  bool has_y, has_weight, has_bias, has_residual;
  Activation act;  ///< without the residual, which backward does not need

  Kept(const Tensor& x_, const Tensor& y_, const Tensor& weight_, const Tensor& bias_, const Activation& then)
      : x(x_),
        y(saved_if(y_, true)),
        weight(saved_if(weight_, true)),
        bias(saved_if(bias_, true)),
        has_y(y_.defined()),
        has_weight(weight_.defined()),
        has_bias(bias_.defined()),
        has_residual(then.residual.defined()),
        act{.relu = then.relu, .ceiling = then.ceiling} {}

  Tensor get_y() const { return has_y ? y.get(kOp) : Tensor(); }
  Tensor get_weight() const { return has_weight ? weight.get(kOp) : Tensor(); }
  Tensor get_bias() const { return has_bias ? bias.get(kOp) : Tensor(); }

  /// Where the kernel puts the residual's gradient: that is dy itself where nothing is clamped.
  Tensor d_residual(const Tensor& dy, const Gradients& in) const {
    if (!has_residual || !act.relu || !in.needed(3)) return {};
    return is_exclusive(dy) ? dy : Tensor::empty(dy.shape(), dy.options());
  }
  void give_residual(Gradients& in, Tensor dy, Tensor d_residual) const {
    if (!has_residual || !in.needed(3)) return;
    if (d_residual.defined()) dy = std::move(d_residual);
    in.give(3, std::move(dy));
  }
};

Tensor train(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
             const Tensor& running_var, const Tensor& batches, const BatchNorm2dOptions& options,
             const Activation& then, TensorOptions statistics) {
  const std::int64_t values = x.size(0) * x.size(2) * x.size(3);
  if (values < 2) {
    throw ShapeError(fmt::format("{}: {} has {} value{} a channel, training needs more than 1 for a variance", kOp,
                                 x.str(), values, values == 1 ? "" : "s"),
                     "use a larger batch, or eval()");
  }
  Tensor y = Tensor::empty(x.shape(), x.options());
  const Tensor mean = Tensor::empty({x.size(1)}, statistics), inv_std = Tensor::empty({x.size(1)}, statistics);
  if (y.numel() > 0) {
    kernels(x).batch_norm_train(x, weight, bias, running_mean, running_var, batches, options, then, y, mean, inv_std);
  }
  for (const Tensor* changed : {&running_mean, &running_var, &batches}) {
    if (changed->defined()) autograd::mark_changed(kOp, *changed);
  }
  if (autograd::recording({&x, &weight, &bias, &then.residual})) {
    // Whoever comes behind may not need the output: a max pooling keeps a byte an element instead.
    Kept kept(x, then.relu && then.residual.defined() ? y : Tensor(), weight, bias, then);
    autograd::record(
        kOp, y, {&x, &weight, &bias, &then.residual},
        [kept, mean, inv_std](Tensor dy, Gradients& in) mutable {
          Tensor x = kept.x.take(kOp);
          const Tensor weight = kept.get_weight(), bias = kept.get_bias();
          Tensor dy2 = in.take_second(), d_residual = dy2.defined() ? place_of_sum(dy, dy2) : kept.d_residual(dy, in);
          // In place of what nobody reads again: x, or dy2, as two gradients then take no more than their sum and dx.
          const Tensor* place = is_exclusive(x) ? &x : dy2.defined() && is_exclusive(dy2) ? &dy2 : nullptr;
          Tensor dx = place ? *place : Tensor::empty(x.shape(), x.options());
          Tensor d_weight = gradient_like(weight, in.needed(1)), d_bias = gradient_like(bias, in.needed(2));
          if (x.numel() > 0) {
            kernels(dy).batch_norm_train_backward(dy, dy2, x, kept.get_y(), weight, bias, mean, inv_std, kept.act,
                                                  kept.has_residual, dx, d_residual, d_weight, d_bias);
          }
          x = dy2 = {};
          if (in.needed(0)) in.give(0, std::move(dx));
          give_if(in, 1, std::move(d_weight));
          give_if(in, 2, std::move(d_bias));
          kept.give_residual(in, std::move(dy), std::move(d_residual));
        },
        autograd::TakesTwo::yes);
  }
  return y;
}

Tensor eval(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
            const Tensor& running_var, double eps, const Activation& then) {
  Tensor y = Tensor::empty(x.shape(), x.options());
  if (y.numel() > 0) kernels(x).batch_norm_eval(x, weight, bias, running_mean, running_var, eps, then, y);
  if (autograd::recording({&x, &weight, &bias, &then.residual})) {
    const Kept kept(x, then.relu ? y : Tensor(), weight, bias, then);
    const Saved saved_mean(running_mean), saved_var(running_var);
    autograd::record(
        kOp, y, {&x, &weight, &bias, &then.residual}, [kept, saved_mean, saved_var, eps](Tensor dy, Gradients& in) {
          const Tensor& x = kept.x.get(kOp);
          const Tensor weight = kept.get_weight(), bias = kept.get_bias();
          Tensor d_residual = kept.d_residual(dy, in);
          Tensor dx = gradient_like(x, in.needed(0));
          Tensor d_weight = gradient_like(weight, in.needed(1));
          Tensor d_bias = gradient_like(bias, in.needed(2));
          if (x.numel() > 0) {
            kernels(dy).batch_norm_eval_backward(dy, x, kept.get_y(), weight, saved_mean.get(kOp), saved_var.get(kOp),
                                                 eps, kept.act, dx, d_residual, d_weight, d_bias);
          } else {
            if (d_weight.defined()) d_weight.zero_();
            if (d_bias.defined()) d_bias.zero_();
          }
          give_if(in, 0, std::move(dx));
          give_if(in, 1, std::move(d_weight));
          give_if(in, 2, std::move(d_bias));
          kept.give_residual(in, std::move(dy), std::move(d_residual));
        });
  }
  return y;
}

/// The activation with its residual ready to be added to x.
Activation checked(const Tensor& x, const Activation& then) {
  if (then.relu && !(then.ceiling > 0)) {
    throw UsageError(fmt::format("{}: ceiling {} is not above 0", kOp, then.ceiling), "6 makes it ReLU6");
  }
  if (!then.residual.defined()) return then;
  check::same_device(kOp, {&x, &then.residual});
  check::same_dtype(kOp, {&x, &then.residual});
  check::same_shape(kOp, x, then.residual);
  return {then.residual.to(x.layout()), then.relu, then.ceiling};
}

}  // namespace

Tensor ops::batch_norm2d(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor running_mean,
                         Tensor running_var, const Tensor& batches, const BatchNorm2dOptions& options,
                         const Activation& then) {
  check::rank(kOp, "input", x, 4);
  check::floating(kOp, x);
  check::same_device(kOp, {&x, &weight, &bias, &running_mean, &running_var, &batches});
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
  const Activation act = checked(x, then);
  if (options.training) {
    return train(x, weight, bias, running_mean, running_var, batches, options, act, statistics);
  }
  if (!running_mean.defined()) {
    throw ShapeError(fmt::format("{}: evaluation needs running statistics", kOp),
                     "pass running_mean and running_var, or train");
  }
  return eval(x, weight, bias, running_mean, running_var, options.eps, act);
}

Tensor batch_norm2d(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor running_mean, Tensor running_var,
                    BatchNorm2dOptions options, const Activation& then) {
  return ops::batch_norm2d(x, weight, bias, std::move(running_mean), std::move(running_var), {}, options, then);
}

}  // namespace cuttle
