#pragma once
#include "cuda/conv/runner.hpp"

namespace cuttle::cuda {

/// The fastest of our own kernels and of cuDNN's first few proposals for a key, timed on the operands' inputs and a
/// scratch output: operands.out is not touched. The search ends at a plan close to what the card's bandwidth and
/// arithmetic allow, once further ones gain little, or after a fraction of a second. Null, with the reasons added, if
/// none runs. Runners that have failed are passed over.
ConvRunnerPtr fastest_runner(Context& context, const ConvKey& key, const ConvOperands& operands, Tried& tried);

}  // namespace cuttle::cuda
