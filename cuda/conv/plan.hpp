#pragma once
#include <utility>
#include <vector>

#include "cuda/conv/choose.hpp"

namespace cuttle::cuda {

/// Computes the convolution by the runner cached for its key, which is chosen on the first call (choose.hpp), and gives
/// that runner's name. The policy `measure` measures when a layer (null: none) comes with a key for the second time,
/// but not while a step is recorded: what comes once, as the last batch of an epoch may, is not worth it.
/// A runner that fails is replaced by the next. Where memory for its workspace cannot be had, one with less takes its
/// place for good, down to none. Throws CudnnError, or OutOfMemoryError, listing every attempt with its reason.
std::string run_convolution(const ConvKey& key, const ConvOperands& operands, const ConvChoice* layer);

/// What the cache holds for a device, the one used last first.
std::vector<std::pair<ConvKey, Chosen>> cached_choices(int device);
/// Forgets it: each key is chosen for again.
void forget_choices(int device);

}  // namespace cuttle::cuda
