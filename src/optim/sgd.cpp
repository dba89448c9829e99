#include <fmt/format.h>

#include "cuttle/error.hpp"
#include "cuttle/optim.hpp"
#include "kernels.hpp"

namespace cuttle::optim {
namespace {

void check(const SGDOptions& o) {
  if (!(o.momentum >= 0 && o.momentum < 1)) {
    throw UsageError(fmt::format("SGD: momentum = {} is outside [0,1)", o.momentum),
                     "it is the share of the previous update that is kept; 0.9 is usual");
  }
  if (!(o.dampening >= 0 && o.dampening <= 1)) {
    throw UsageError(fmt::format("SGD: dampening = {} is outside [0,1]", o.dampening));
  }
  if (o.nesterov && (o.momentum == 0 || o.dampening != 0)) {
    throw UsageError(
        fmt::format("SGD: nesterov needs momentum above 0 and no dampening, but momentum = {}, dampening = {}",
                    o.momentum, o.dampening));
  }
}

std::vector<std::string> state_names(const SGDOptions& options) {
  if (options.momentum == 0) return {};
  return {"momentum"};
}

}  // namespace

SGD::SGD(std::vector<Tensor> parameters, SGDOptions options)
    : Optimizer("SGD", std::move(parameters), options.lr, options.weight_decay, options.decay_norm_and_bias,
                state_names(options)),
      options_(options) {
  check(options);
}

void SGD::update(const Group& group) {
  const Kernels::SgdHyper hyper{options_.momentum, options_.dampening, options_.nesterov};
  const Tensors buffers = group.states.empty() ? Tensors() : Tensors(group.states[0]);
  kernels(group.step)
      .sgd_step({group.params, group.grads, group.copies, group.decay, lr_tensor(), group.step, group.factor}, buffers,
                hyper);
}

}  // namespace cuttle::optim
