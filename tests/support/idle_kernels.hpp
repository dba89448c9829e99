#pragma once
#include "kernels.hpp"

namespace cuttle::test {

template <class... Args> void do_nothing(Slot<void(Args...)>& slot) {
  slot = [](Args...) {};
}

/// While it lives, training steps of the CPU allocate as they would and compute nothing, so that their memory is never
/// touched.
class IdleKernels {
 public:
  IdleKernels() {
    Kernels& k = backend(DeviceKind::cpu).kernels;
    idle(k.add, k.relu, k.relu_backward, k.conv2d, k.conv2d_backward_data, k.conv2d_backward_filter, k.bias_backward,
         k.bias_relu_backward, k.linear, k.linear_backward_data, k.linear_backward_weight, k.max_pool2d,
         k.max_pool2d_backward, k.adaptive_avg_pool2d, k.adaptive_avg_pool2d_backward, k.batch_norm_train,
         k.batch_norm_eval, k.batch_norm_train_backward, k.cross_entropy, k.cross_entropy_backward, k.sgd_step,
         k.gradient_factor);
  }
  ~IdleKernels() { backend(DeviceKind::cpu).kernels = before_; }
  IdleKernels(const IdleKernels&) = delete;
  IdleKernels& operator=(const IdleKernels&) = delete;

 private:
  template <class... Slots> static void idle(Slots&... slots) { (do_nothing(slots), ...); }

  Kernels before_ = backend(DeviceKind::cpu).kernels;
};

}  // namespace cuttle::test
