#include "memory/host_usage.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace cuttle::memory {
namespace {

/// The number after `key` in a file of "key number" lines, as /proc/meminfo and memory.stat are.
std::optional<std::uint64_t> field(const std::filesystem::path& file, std::string_view key) {
  std::ifstream in(file);
  std::string word;
  std::uint64_t value = 0;
  while (in >> word) {
    if (word == key && in >> value) return value;
    in.clear();
    in.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

std::optional<std::uint64_t> number(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::uint64_t value = 0;
  if (in >> value) return value;
  return std::nullopt;
}

std::uint64_t minus(std::uint64_t a, std::uint64_t b) { return a - std::min(a, b); }

std::uint64_t resident_bytes(const std::filesystem::path& root) {
  std::ifstream in(root / "proc/self/statm");
  std::uint64_t program_pages = 0, resident_pages = 0;
  in >> program_pages >> resident_pages;
  return resident_pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
}

struct ControlGroup {
  const char *limit, *used, *stat, *reclaimable;
};
// Version 2 has no limit file in the root group, and "max" (no number) where there is no limit.
constexpr ControlGroup kControlGroups[] = {
    {"sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current", "sys/fs/cgroup/memory.stat", "inactive_file"},
    {"sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/memory/memory.usage_in_bytes",
     "sys/fs/cgroup/memory/memory.stat", "total_inactive_file"}};

void apply_container_limit(const std::filesystem::path& root, SourceUsage& usage) {
  for (const ControlGroup& group : kControlGroups) {
    const auto limit = number(root / group.limit);
    const auto used = number(root / group.used);
    if (!limit || !used || *limit >= usage.total_bytes) continue;
    // The kernel drops cached file pages before it refuses memory.
    const std::uint64_t held = minus(*used, field(root / group.stat, group.reclaimable).value_or(0));
    usage.total_bytes = *limit;
    usage.free_bytes = std::min(usage.free_bytes, minus(*limit, held));
  }
}

}  // namespace

std::optional<SourceUsage> host_usage(const std::filesystem::path& root) {
  const auto total_kib = field(root / "proc/meminfo", "MemTotal:");
  const auto available_kib = field(root / "proc/meminfo", "MemAvailable:");
  if (!total_kib || !available_kib) return std::nullopt;
  SourceUsage usage{.free_bytes = *available_kib * 1024, .total_bytes = *total_kib * 1024};
  apply_container_limit(root, usage);
  usage.other_processes_bytes = minus(usage.total_bytes, usage.free_bytes + resident_bytes(root));
  return usage;
}

}  // namespace cuttle::memory
