#pragma once
#include "cuttle/ops.hpp"

namespace cuttle::cpu {

/// Convolution with one input channel a group: filter c*M + j reads channel c, M = K/C. NHWC x[N,C,H,W], w[K,1,R,S],
/// y[N,K,P,Q]; direct, with vectors over the channels. The bits do not depend on the number of threads.
template <class T>
void depthwise_forward(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2dOptions& o, const Tensor& y);
template <class T>
void depthwise_backward_data(const Tensor& dy, const Tensor& w, const Conv2dOptions& o, const Tensor& dx);
template <class T>
void depthwise_backward_filter(const Tensor& dy, const Tensor& x, const Conv2dOptions& o, const Tensor& dw,
                               bool accumulate);

}  // namespace cuttle::cpu
