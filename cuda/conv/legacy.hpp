#pragma once
#include <set>

#include "cuda/conv/runner.hpp"

namespace cuttle::cuda {

/// cuDNN's legacy convolution API: the algorithm that key.algorithm names, or, where it is empty or names one of
/// another pass only, the first that cuDNN's heuristic gives within the key's limits. Null, with the reasons added, if
/// there is none. Names in `failed` are passed over.
ConvRunnerPtr legacy_runner(Context& context, const ConvKey& key, const std::set<std::string>& failed,
                            Attempts& attempts);

}  // namespace cuttle::cuda
