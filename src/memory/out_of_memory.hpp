#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "cuttle/error.hpp"
#include "cuttle/memory.hpp"

namespace cuttle::memory {

/// What is known when a request has failed for good.
struct Shortage {
  Device device;
  std::uint64_t requested_bytes = 0;
  Stats stats;
  std::optional<std::uint64_t> limit;
  std::optional<SourceUsage> usage;
  std::uint64_t free_elsewhere_bytes = 0;  ///< free blocks that other streams and private pools keep
};

/// The error with these figures, and a hint that fits the cause.
OutOfMemoryError out_of_memory_error(const Shortage& shortage);

}  // namespace cuttle::memory
