#include <fmt/format.h>

#include "cuttle/error.hpp"
#include "cuttle/optim.hpp"
#include "kernels.hpp"

namespace cuttle::optim {
namespace {

void check_beta(const char* name, double beta) {
  if (beta >= 0 && beta < 1) return;
  throw UsageError(fmt::format("AdamW: {} = {} is outside [0,1)", name, beta),
                   "it is how much of a running mean each step keeps");
}

}  // namespace

AdamW::AdamW(std::vector<Tensor> parameters, AdamWOptions options)
    : Optimizer("AdamW", std::move(parameters), options.lr, options.weight_decay, options.decay_norm_and_bias,
                {"exp_avg", "exp_avg_sq"}),
      options_(options) {
  check_beta("beta1", options.beta1);
  check_beta("beta2", options.beta2);
  if (!(options.eps >= 0)) throw UsageError(fmt::format("AdamW: eps = {} must be at least 0", options.eps));
}

void AdamW::update(const Group& group) {
  const Kernels::AdamWHyper hyper{options_.beta1, options_.beta2, options_.eps};
  kernels(group.step)
      .adamw_step({group.params, group.grads, group.copies, group.decay, lr_tensor(), group.step, group.factor},
                  group.states[0], group.states[1], hyper);
}

}  // namespace cuttle::optim
