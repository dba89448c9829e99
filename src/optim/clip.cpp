#include <fmt/format.h>

#include "autograd/node.hpp"
#include "cuttle/error.hpp"
#include "cuttle/optim.hpp"
#include "kernels.hpp"

namespace cuttle::optim {
namespace {

std::vector<Tensor> gradients_of(const std::vector<Tensor>& parameters) {
  std::vector<Tensor> grads;
  for (const Tensor& p : parameters) {
    if (const Tensor g = p.grad(); g.defined() && g.numel() > 0) grads.push_back(g);
  }
  return grads;
}

Tensor norm_of(const char* op, const std::vector<Tensor>& grads) {
  if (grads.empty()) return Tensor::scalar(0);
  const Tensor norm = Tensor::empty({}, {.device = grads.front().device()});
  for (const Tensor& g : grads) {
    if (g.device() != norm.device()) {
      throw DeviceError(fmt::format("{}: gradients lie on {} and {}", op, norm.device().str(), g.device().str()),
                        "move the whole model with model.to(device)");
    }
  }
  kernels(norm).global_norm(grads, norm);
  return norm;
}

}  // namespace

Tensor grad_norm(const std::vector<Tensor>& parameters) {
  const NoGrad no_grad;
  return norm_of("grad_norm", gradients_of(parameters));
}

Tensor clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm) {
  if (!(max_norm >= 0)) {
    throw UsageError(fmt::format("clip_grad_norm_: max_norm = {} must be at least 0", max_norm));
  }
  const NoGrad no_grad;
  const std::vector<Tensor> grads = gradients_of(parameters);
  const Tensor norm = norm_of("clip_grad_norm_", grads);
  if (grads.empty()) return norm;
  kernels(norm).clip_by_norm(grads, norm, max_norm);
  for (const Tensor& g : grads) autograd::mark_changed("clip_grad_norm_", g);
  return norm;
}

}  // namespace cuttle::optim
