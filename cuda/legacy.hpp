#pragma once
#include "cuda/conv_runner.hpp"

namespace cuttle::cuda {

/// cuDNN's legacy convolution API: the algorithm that key.algorithm names, or, where it is empty or names one of
/// another pass only, the first that cuDNN's heuristic gives within the key's limits. Null, with the reasons added, if
/// there is none.
ConvRunnerPtr legacy_runner(Context& context, const ConvKey& key, Attempts& attempts);

}  // namespace cuttle::cuda
