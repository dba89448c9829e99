#include <algorithm>

#include "cuda/kernels/classify.cuh"
#include "cuda/register.hpp"

namespace cuttle::cuda {

namespace {

/// As its CPU twin, element by element in float: y = x - max - log(sum(exp(x - max))), or the exponential of that.
template <class T, bool kLog, bool kBlock>
__global__ void softmax_kernel(const T* x, T* y, std::int64_t rows, std::int64_t classes) {
  const RowThreads<kBlock> threads;
  for (std::int64_t row = threads.first_row(); row < rows; row += threads.row_step()) {
    const T* in = x + row * classes;
    T* out = y + row * classes;
    const LogSumExp lse = log_sum_exp(threads, in, classes);
    for (std::int64_t k = threads.lane(); k < classes; k += threads.lanes()) {
      const float shifted = float(in[k]) - lse.max;
      out[k] = T(kLog ? shifted - lse.log_sum() : expf(shifted) / lse.sum);
    }
  }
}

template <class T, bool kLog, bool kBlock>
__global__ void softmax_backward_kernel(const T* dy, const T* y, T* dx, std::int64_t rows, std::int64_t classes) {
  const RowThreads<kBlock> threads;
  for (std::int64_t row = threads.first_row(); row < rows; row += threads.row_step()) {
    const T *gradient = dy + row * classes, *output = y + row * classes;
    float sum = 0;
    for (std::int64_t k = threads.lane(); k < classes; k += threads.lanes()) {
      sum += kLog ? float(gradient[k]) : float(gradient[k]) * float(output[k]);
    }
    sum = threads.sum(sum);
    for (std::int64_t k = threads.lane(); k < classes; k += threads.lanes()) {
      const float d = float(gradient[k]), value = float(output[k]);
      dx[row * classes + k] = T(kLog ? d - expf(value) * sum : value * (d - sum));
    }
  }
}

template <bool kLog> void softmax_of(const char* op, const Tensor& x, const Tensor& y) {
  const std::int64_t rows = x.size(0), classes = x.size(1);
  dispatch_floating(op, x, [&]<class T>(T) {
    const RowLaunch launch(context(x), rows, classes);
    const auto kernel = launch.wide ? softmax_kernel<T, kLog, true> : softmax_kernel<T, kLog, false>;
    kernel<<<launch.blocks, kThreads, 0, context(x).stream()>>>(pointer<T>(x), pointer<T>(y), rows, classes);
  });
  CUTTLE_LAUNCHED("softmax");
}

template <bool kLog> void softmax_backward_of(const char* op, const Tensor& dy, const Tensor& y, const Tensor& dx) {
  const std::int64_t rows = y.size(0), classes = y.size(1);
  dispatch_floating(op, y, [&]<class T>(T) {
    const RowLaunch launch(context(y), rows, classes);
    const auto kernel = launch.wide ? softmax_backward_kernel<T, kLog, true> : softmax_backward_kernel<T, kLog, false>;
    kernel<<<launch.blocks, kThreads, 0, context(y).stream()>>>(pointer<T>(dy), pointer<T>(y), pointer<T>(dx), rows,
                                                                classes);
  });
  CUTTLE_LAUNCHED("softmax backward");
}

}  // namespace

void register_classify(Kernels& k) {
  k.log_softmax = [](const Tensor& x, const Tensor& y) { softmax_of<true>("log_softmax", x, y); };
  k.log_softmax_backward = [](const Tensor& dy, const Tensor& y, const Tensor& dx) {
    softmax_backward_of<true>("log_softmax backward", dy, y, dx);
  };
  k.softmax = [](const Tensor& x, const Tensor& y) { softmax_of<false>("softmax", x, y); };
  k.softmax_backward = [](const Tensor& dy, const Tensor& y, const Tensor& dx) {
    softmax_backward_of<false>("softmax backward", dy, y, dx);
  };
  register_loss(k);
}

}  // namespace cuttle::cuda
