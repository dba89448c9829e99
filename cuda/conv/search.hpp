#pragma once
#include "cuda/conv/choose.hpp"

namespace cuttle::cuda {

/// The fastest of what there is, of our own kernels and of cuDNN's first few proposals for a key, timed on the
/// operands' inputs and a scratch output: operands.out is not touched. The search ends after key.measure_limit
/// candidates, at a plan close to what the card's bandwidth and arithmetic allow, once further ones gain little, or
/// after a fraction of a second. No runner, with the reasons added, if none runs. Runners that have failed are passed
/// over.
Chosen fastest_runner(Context& context, const ConvKey& key, const ConvOperands& operands,
                      const ConvRunnerPtr& incumbent, Tried& tried);

}  // namespace cuttle::cuda
