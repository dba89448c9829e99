#include <fmt/format.h>

#include "autograd/node.hpp"
#include "cuttle/error.hpp"
#include "cuttle/optim.hpp"
#include "kernels.hpp"

namespace cuttle::optim {

Tensor clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm) {
  if (!(max_norm >= 0)) {
    throw UsageError(fmt::format("clip_grad_norm_: max_norm = {} must be at least 0", max_norm));
  }
  std::vector<Tensor> grads;
  for (const Tensor& p : parameters) {
    if (const Tensor g = p.grad(); g.defined() && g.numel() > 0) grads.push_back(g);
  }
  if (grads.empty()) return Tensor::scalar(0);

  const NoGrad no_grad;
  const Tensor norm = Tensor::empty({}, {.device = grads.front().device()});
  for (const Tensor& g : grads) {
    if (g.device() != norm.device()) {
      throw DeviceError(
          fmt::format("clip_grad_norm_: gradients lie on {} and {}", norm.device().str(), g.device().str()),
          "move the whole model with model.to(device)");
    }
  }
  kernels(norm).global_norm(grads, norm);
  kernels(norm).clip_by_norm(grads, norm, max_norm);
  for (const Tensor& g : grads) autograd::mark_changed("clip_grad_norm_", g);
  return norm;
}

}  // namespace cuttle::optim
