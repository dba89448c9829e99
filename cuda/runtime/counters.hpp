#pragma once
#include <cstdint>

#include "cuda/runtime/context.hpp"

namespace cuttle::cuda {

/// At least `count` counters on the context's device that are zero between kernels of the compute stream. A kernel that
/// counts its finished blocks leaves them zero, so that neither a launch nor a replay needs a memset. Made on first
/// use; throws DeviceError if that is while a step is recorded.
unsigned* block_counters(const Context& context, std::int64_t count);

}  // namespace cuttle::cuda
