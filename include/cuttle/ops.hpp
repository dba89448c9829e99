#pragma once
#include <cstdint>
#include <limits>
#include <memory>

#include "cuttle/conv.hpp"
#include "cuttle/tensor.hpp"

/// Every op. All are differentiable unless they say otherwise, take tensors of one device and one floating dtype (but
/// parameters of conv2d and linear may be f32 for activations of 16 bits: they are used through a copy that is kept
/// beside them, and their gradients have 16 bits), and throw ShapeError, DtypeError or DeviceError with each tensor's
/// description. Semantics are PyTorch's.
/// Names: N batch, C channels, H,W input and P,Q output height and width, K filters, R,S filter height and width.
namespace cuttle {

/// What follows an op in the same call: y = min(max(op(x) + residual, 0), ceiling), the clamp only where `relu` is set
/// (ceiling 6 makes it ReLU6). residual, of the result's shape and dtype, may be undefined; one of the other layout is
/// converted first. UsageError for a ceiling that is not above 0.
struct Activation {
  Tensor residual = {};
  bool relu = false;
  double ceiling = std::numeric_limits<double>::infinity();
};

// ---- Convolution and linear ------------------------------------------------------------------------------------
struct Conv2dOptions {
  Size2 stride = 1, padding = 0, dilation = 1;
  std::int64_t groups = 1;
  std::shared_ptr<ConvChoice> choice = {};  ///< algorithms that are asked for; none: the policy's (conv.hpp)
};
/// x[N,C,H,W], weight[K,C/groups,R,S], bias[K] or undefined -> [N,K,P,Q],
/// P = (H + 2*padding - dilation*(R-1) - 1)/stride + 1, rounded down. Cross-correlation, as in every framework.
/// A weight of the other layout is converted first. `then` gives the values of add_() and relu_() behind it: a ReLU
/// alone is part of the convolution's own pass over memory, anything else is computed behind it.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, Conv2dOptions options = {},
              const Activation& then = {});

/// x[..., I], weight[O, I], bias[O] or undefined -> [..., O] = x weight^T + bias. `then` as in conv2d.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {}, const Activation& then = {});

// ---- Pooling ---------------------------------------------------------------------------------------------------
struct Pool2dOptions {
  Size2 kernel = 1;
  Size2 stride = 0;               ///< 0 means the kernel
  Size2 padding = 0;              ///< at most half the kernel
  Size2 dilation = 1;             ///< max pooling only
  bool ceil_mode = false;         ///< round the output size up; a window that starts in the right padding is dropped
  bool count_include_pad = true;  ///< average pooling: divide by the window, padding included
};
Tensor max_pool2d(const Tensor& x, Pool2dOptions options);
Tensor avg_pool2d(const Tensor& x, Pool2dOptions options);
/// Window of output p is [floor(p*H/P), ceil((p+1)*H/P)).
Tensor adaptive_avg_pool2d(const Tensor& x, Size2 output);
Tensor global_avg_pool2d(const Tensor& x);  ///< -> [N,C,1,1]

// ---- Elementwise -----------------------------------------------------------------------------------------------
Tensor relu(const Tensor& x);
/// In place; returns x. Backward needs only the output.
Tensor relu_(Tensor x);
Tensor relu6(const Tensor& x);                 ///< min(max(x, 0), 6); its gradient is zero at both ends, as in PyTorch
Tensor relu6_(Tensor x);                       ///< in place; returns x
Tensor add(const Tensor& a, const Tensor& b);  ///< same shapes
Tensor add_(Tensor a, const Tensor& b);        ///< a += b in place; returns a
Tensor mul(const Tensor& x, double factor);
/// Zeroes each element with probability p and scales the rest by 1/(1-p) while training; the identity otherwise. The
/// mask is drawn from default_generator() and is never stored.
Tensor dropout(const Tensor& x, double p = 0.5, bool training = true);

// ---- Reductions ------------------------------------------------------------------------------------------------
Tensor sum(const Tensor& x);  ///< of all elements -> scalar
Tensor mean(const Tensor& x);

// ---- Normalisation ---------------------------------------------------------------------------------------------
struct BatchNorm2dOptions {
  bool training = true;
  double momentum = 0.1;
  double eps = 1e-5;
};
/// Over N,H,W of each channel of x[N,C,H,W]. Training normalises with the batch's mean and biased variance and moves
/// running_mean and running_var (f32[C], changed in place, may be undefined) towards the mean and unbiased variance;
/// otherwise it normalises with the running ones. weight[C] and bias[C] may be undefined (1 and 0). `then` gives the
/// values of add() and relu() behind it, all in one pass over memory.
Tensor batch_norm2d(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor running_mean, Tensor running_var,
                    BatchNorm2dOptions options = {}, const Activation& then = {});

// ---- Shape -----------------------------------------------------------------------------------------------------
/// Dimensions from `start` on become one, in logical order: an NHWC tensor with C > 1 and H*W > 1 is copied, all else
/// is a view.
Tensor flatten(const Tensor& x, int start = 1);

// ---- Classification --------------------------------------------------------------------------------------------
Tensor log_softmax(const Tensor& x);  ///< over the last dimension of x[N,K]
Tensor softmax(const Tensor& x);      ///< over the last dimension of x[N,K]

enum class Reduction : std::uint8_t { mean, sum };
struct CrossEntropyOptions {
  double label_smoothing = 0;
  Reduction reduction = Reduction::mean;
};
/// logits[N,K] and targets i64[N] -> scalar: -log softmax of the target class, with PyTorch's label smoothing.
/// The loss is f32, or f64 for f64 logits; its gradient flows to the logits. A target outside [0,K) is a DataError.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, CrossEntropyOptions options = {});

/// Rows of logits[N,K] whose largest value (the first of equals) stands at the target -> i64 scalar. No gradient.
Tensor correct_count(const Tensor& logits, const Tensor& targets);
/// correct_count as a fraction; waits for the device.
double accuracy(const Tensor& logits, const Tensor& targets);

// ---- Input -----------------------------------------------------------------------------------------------------
struct NormalizeOptions {
  DType dtype = DType::f32;  ///< of the result; any floating one
  /// i32[N,3] or undefined: top, left and flip of each image. What stands at (h, w) comes from row h + top and column
  /// left + (flip ? W-1-w : w); outside the image that is black (0 before normalising), as torchvision's RandomCrop
  /// pads.
  Tensor windows = {};
};
/// Images u8[N,C,H,W] -> floats of the same shape and layout, (x/255 - mean[c]) / stddev[c]; mean and stddev f32[C]. No
/// gradient.
Tensor normalize_images(const Tensor& images, const Tensor& mean, const Tensor& stddev,
                        const NormalizeOptions& options = {});

// ---- Checks ----------------------------------------------------------------------------------------------------
Tensor non_finite_count(const Tensor& x);  ///< NaN and infinite elements -> i64 scalar. No gradient.

}  // namespace cuttle
