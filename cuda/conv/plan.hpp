#pragma once
#include "cuda/conv/runner.hpp"

namespace cuttle::cuda {

/// Computes the convolution by the runner cached for its key, which is chosen on the first call (choose.hpp), and gives
/// that runner's name.
/// A runner that fails is replaced by the next. Where memory for its workspace cannot be had, runners with less are
/// tried down to none. Throws CudnnError, or OutOfMemoryError, listing every attempt with its reason; DeviceError where
/// a search is due while a step is captured.
std::string run_convolution(const ConvKey& key, const ConvOperands& operands);

}  // namespace cuttle::cuda
