#include "cuttle/autograd.hpp"
#include "cuttle/nn.hpp"
#include "nn/state_match.hpp"

namespace cuttle::nn {

void load_state(Module& module, const std::vector<NamedTensor>& tensors) {
  const std::vector<NamedTensor> own = module.state();
  StateMatch match(tensors);
  std::vector<Tensor> sources;
  for (const NamedTensor& t : own) sources.push_back(match.take(t.name, t.tensor.shape(), t.tensor.dtype()));
  match.finish("the model");

  // Conversions, which may run out of memory, come before the first change.
  const NoGrad no_grad;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const Tensor& target = own[i].tensor;
    sources[i] = sources[i].to(target.device()).to(target.dtype());
    if (target.rank() == 4) sources[i] = sources[i].to(target.layout());
  }
  for (std::size_t i = 0; i < own.size(); ++i) Tensor(own[i].tensor).copy_(sources[i]);
}

}  // namespace cuttle::nn
