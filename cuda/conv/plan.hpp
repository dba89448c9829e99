#pragma once
#include <set>

#include "cuda/conv/runner.hpp"

namespace cuttle::cuda {

/// Computes the convolution by the runner cached for its key, which is chosen on the first call:
/// - heuristic: kernels of our own; the first plan that builds of heuristic mode A, B, then of the fallback; the
///   legacy API; gemm.
/// - measured: the fastest of cuDNN's proposals (search.hpp); where none can be timed, as heuristic.
/// - legacy, gemm: that path only.
/// A runner that fails is replaced by the next. Where memory for its workspace cannot be had, runners with less are
/// tried down to none. Throws CudnnError, or OutOfMemoryError, listing every attempt with its reason; DeviceError where
/// a search is due while a step is captured.
void run_convolution(const ConvKey& key, const ConvOperands& operands);

/// The name of the runner that `key` has in the cache, or an empty string.
std::string cached_runner(const ConvKey& key);

}  // namespace cuttle::cuda
