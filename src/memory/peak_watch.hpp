#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "cuttle/memory.hpp"

namespace cuttle::memory {

/// Watches which blocks of an allocator are in use when most bytes are: what would have to go to need less.
class PeakWatch {
 public:
  /// From now on, and what is in use already; nobody else may use the allocator in the meantime. Has the allocator's
  /// event hook for as long as it lives.
  explicit PeakWatch(CachingAllocator& allocator);
  ~PeakWatch() { allocator_.set_event_hook({}); }
  PeakWatch(const PeakWatch&) = delete;
  PeakWatch& operator=(const PeakWatch&) = delete;

  struct Blocks {
    std::size_t bytes, count;  ///< so many of this size
  };
  std::vector<Blocks> at_peak() const;  ///< the largest first

 private:
  void take(const Event& event);

  CachingAllocator& allocator_;
  mutable std::mutex mutex_;
  std::map<std::size_t, std::size_t> in_use_, at_peak_;  ///< blocks by size
  std::uint64_t bytes_ = 0, peak_bytes_ = 0;
  bool is_peak_ = false;  ///< in_use_ is what at_peak_ has to become
};

}  // namespace cuttle::memory
