#pragma once
#include <string_view>

#include "cuda/conv/runner.hpp"

namespace cuttle::cuda {

bool is_legacy_name(Pass pass, std::string_view name);

/// cuDNN's legacy convolution API: the algorithm of this name. Null, with the reason added, where it cannot run.
ConvRunnerPtr legacy_runner_of(Context& context, const ConvKey& key, std::string_view name, Tried& tried);

/// The first algorithm that the legacy API's heuristic gives within the key's limits; null, with the reasons added, if
/// there is none.
ConvRunnerPtr legacy_runner(Context& context, const ConvKey& key, Tried& tried);

}  // namespace cuttle::cuda
