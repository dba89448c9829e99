#pragma once
#include <string>

#include "cuda/conv/runner.hpp"

namespace cuttle::cuda {

/// The first of the key's names that can run; "auto" is what the policy takes:
/// - heuristic: kernels of our own; the first plan that builds of heuristic mode A, B, then of the fallback; the
///   legacy API; gemm. Without cuDNN: our own and gemm.
/// - measure: the fastest of these (search.hpp); where none can be timed, as heuristic.
/// - legacy, gemm: that alone.
/// Null, with the reasons added, if there is none. DeviceError where a search is due while a step is captured.
ConvRunnerPtr choose(Context& context, const ConvKey& key, const ConvOperands& operands, Tried& tried);

/// The algorithm of this name (not "auto"), or null with the reason added.
ConvRunnerPtr named_runner(Context& context, const ConvKey& key, const std::string& name, Tried& tried);

}  // namespace cuttle::cuda
