#pragma once
#include "cuttle/ops.hpp"

namespace cuttle::cpu {

void max_pool2d(const Tensor& x, const Pool2dOptions& options, const Tensor& y, const Tensor& argmax);
void max_pool2d_backward(const Tensor& dy, const Tensor& argmax, const Pool2dOptions& options, const Tensor& dx);

}  // namespace cuttle::cpu
