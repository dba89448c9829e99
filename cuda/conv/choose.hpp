#pragma once
#include <string>

#include "cuda/conv/runner.hpp"

namespace cuttle::cuda {

/// What computes a key from now on.
struct Chosen {
  ConvRunnerPtr runner = {};    ///< null: nothing can, and `Tried` has the reasons
  double time_us = 0;           ///< 0: it was not timed
  bool is_provisional = false;  ///< the policy would have measured, and was not to
};

/// When the policy `measure` does so.
struct Measuring {
  bool now = false;
  ConvRunnerPtr incumbent = {};  ///< what has computed the key so far, if anything: the first candidate
};

/// The first of the key's names that can run; "auto" is what the policy takes:
/// - heuristic: kernels of our own; the first plan that builds of heuristic mode A, B, then of the fallback; the
///   legacy API; gemm. Without cuDNN: our own and gemm.
/// - measure: the fastest of these (search.hpp); where none can be timed, or it is not to be done now, as heuristic.
/// - legacy, gemm: that alone.
Chosen choose(Context& context, const ConvKey& key, const ConvOperands& operands, const Measuring& measuring,
              Tried& tried);

/// The algorithm of this name (not "auto"), or null with the reason added.
ConvRunnerPtr named_runner(Context& context, const ConvKey& key, const std::string& name, Tried& tried);

}  // namespace cuttle::cuda
