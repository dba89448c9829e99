#pragma once
#include <filesystem>
#include <optional>

#include "cuttle/memory.hpp"

namespace cuttle::memory {

/// Host memory as Linux counts it: total and available of the machine, or of the container where that has less.
/// `root` stands before /proc and /sys, so that a test can bring its own. nullopt where /proc does not say.
std::optional<SourceUsage> host_usage(const std::filesystem::path& root = "/");

}  // namespace cuttle::memory
