#include "cuda/kernels/norm.hpp"

#include "cuda/register.hpp"

/// Batch normalisation: Ioffe & Szegedy, "Batch Normalization" (2015), over N,H,W of each channel.
namespace cuttle::cuda {

namespace {

/// Channels are the columns of a matrix in memory; of one channel or one pixel an image has one order only.
bool channels_last(const Tensor& x) {
  return x.layout() == Layout::nhwc || x.size(1) == 1 || x.size(2) * x.size(3) == 1;
}

void forward(const NormForward& call) {
  if (channels_last(call.x)) return norm_forward_nhwc(call);
  norm_forward_nchw(call);
}

void backward(const NormBackward& call) {
  if (channels_last(call.x)) return norm_backward_nhwc(call);
  norm_backward_nchw(call);
}

void batch_norm_train(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                      const Tensor& running_var, const Tensor& batches, const BatchNorm2dOptions& options,
                      const Activation& act, const Tensor& y, const Tensor& mean, const Tensor& inv_std) {
  forward({x, weight, bias, running_mean, running_var, options.eps, act, y, true, options.momentum, batches, mean,
           inv_std});
}

void batch_norm_eval(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
                     const Tensor& running_var, double eps, const Activation& act, const Tensor& y) {
  forward({x, weight, bias, running_mean, running_var, eps, act, y});
}

void batch_norm_train_backward(const Tensor& dy, const Tensor& dy2, const Tensor& x, const Tensor& y,
                               const Tensor& weight, const Tensor& bias, const Tensor& mean, const Tensor& inv_std,
                               const Activation& act, bool added, const Tensor& dx, const Tensor& d_residual,
                               const Tensor& d_weight, const Tensor& d_bias) {
  backward({dy, x, y, weight, bias, mean, inv_std, false, 0, act, !added, dx, d_residual, d_weight, d_bias, dy2});
}

void batch_norm_eval_backward(const Tensor& dy, const Tensor& x, const Tensor& y, const Tensor& weight,
                              const Tensor& running_mean, const Tensor& running_var, double eps, const Activation& act,
                              const Tensor& dx, const Tensor& d_residual, const Tensor& d_weight,
                              const Tensor& d_bias) {
  backward({dy, x, y, weight, {}, running_mean, running_var, true, eps, act, false, dx, d_residual, d_weight, d_bias});
}

}  // namespace

void register_norm(Kernels& k) {
  k.batch_norm_train = batch_norm_train;
  k.batch_norm_eval = batch_norm_eval;
  k.batch_norm_train_backward = batch_norm_train_backward;
  k.batch_norm_eval_backward = batch_norm_eval_backward;
}

}  // namespace cuttle::cuda
