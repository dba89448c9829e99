#pragma once
#include "autograd/node.hpp"
#include "cuttle/ops.hpp"

/// What convolution and linear have in common: the activation behind them, and the gradient on its way to their bias.
namespace cuttle::ops {

/// A ReLU and nothing else: their kernels do that. All else is left to finish().
bool is_plain_relu(const Activation& then);
/// Throws UsageError or ShapeError unless `then` can follow a result of this shape.
void check_activation(const char* op, const Activation& then, const Shape& result);
/// y, which nobody has seen yet, with what the kernel has not done.
Tensor finish(Tensor y, const Activation& then);

/// The first part of the backward of y = op(...) + bias, or of its ReLU.
class BiasBackward {
 public:
  BiasBackward(const char* op, const Tensor& y, bool relu);
  /// Gives the bias, input i, its gradient. Returns the gradient before the ReLU: dy itself, changed if nobody else
  /// sees it, or a new tensor.
  Tensor operator()(Tensor dy, autograd::Gradients& inputs, std::size_t i, TensorOptions options) const;

 private:
  const char* op_;
  bool relu_;
  std::int64_t channels_;
  autograd::Saved y_;  ///< where there is a ReLU
};

}  // namespace cuttle::ops
