#include "memory/out_of_memory.hpp"

#include <fmt/format.h>

#include "core/text.hpp"

namespace cuttle::memory {
namespace {

constexpr const char* kAskForLess = "take a smaller --batch (--accumulate N keeps the effective batch size)";

std::string cause(const Shortage& s) {
  std::string text = fmt::format("out of memory on {}: {} requested, {} allocated, {} reserved", s.device.str(),
                                 format_bytes(s.requested_bytes), format_bytes(s.stats.allocated_bytes),
                                 format_bytes(s.stats.reserved_bytes));
  if (s.limit) text += fmt::format(" of a limit of {}", format_bytes(*s.limit));
  text += fmt::format(", largest free block {} (fragmentation {:.2f})", format_bytes(s.stats.largest_free_block_bytes),
                      s.stats.fragmentation);
  if (s.usage) {
    text +=
        fmt::format("; {} of the device's {} are free and other processes hold {}", format_bytes(s.usage->free_bytes),
                    format_bytes(s.usage->total_bytes), format_bytes(s.usage->other_processes_bytes));
  }
  return text;
}

std::string hint(const Shortage& s) {
  const std::uint64_t cached = s.stats.reserved_bytes - s.stats.allocated_bytes;
  if (s.limit && s.requested_bytes > *s.limit) {
    return fmt::format("this block alone exceeds the limit: raise --memory-limit, or {}", kAskForLess);
  }
  if (s.usage && s.requested_bytes > s.usage->total_bytes) {
    return fmt::format("this block alone exceeds the device: {}, or choose a larger device with --device", kAskForLess);
  }
  if (s.free_elsewhere_bytes >= s.requested_bytes) {
    return fmt::format("{} lie free in the pools of other streams or captured graphs: release those pools, or {}",
                       format_bytes(s.free_elsewhere_bytes), kAskForLess);
  }
  if (cached >= s.requested_bytes) {
    return fmt::format("{} lie free but in pieces between blocks in use: {}{}", format_bytes(cached),
                       s.limit ? "raise --memory-limit, or " : "", kAskForLess);
  }
  if (s.limit && (!s.usage || s.usage->free_bytes >= s.requested_bytes)) {
    return fmt::format("the limit is in the way, not the device: raise --memory-limit, or {}", kAskForLess);
  }
  if (s.usage && s.usage->other_processes_bytes >= s.requested_bytes) {
    return fmt::format("other processes hold {}: end them, choose another device with --device, or {}",
                       format_bytes(s.usage->other_processes_bytes), kAskForLess);
  }
  return fmt::format("{}, or choose a larger device with --device", kAskForLess);
}

}  // namespace

OutOfMemoryError out_of_memory_error(const Shortage& shortage) {
  return OutOfMemoryError(cause(shortage), hint(shortage));
}

}  // namespace cuttle::memory
