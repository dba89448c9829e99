#include "memory/peak_watch.hpp"

#include <algorithm>

namespace cuttle::memory {

PeakWatch::PeakWatch(CachingAllocator& allocator) : allocator_(allocator) {
  for (const SegmentInfo& segment : allocator.snapshot()) {
    for (const BlockInfo& block : segment.blocks) {
      if (block.allocated) take({Event::Kind::allocate, block.address, block.bytes, segment.stream, block.pool});
    }
  }
  allocator.set_event_hook([this](const Event& event) { take(event); });
}

void PeakWatch::take(const Event& event) {
  const std::lock_guard lock(mutex_);
  if (event.kind == Event::Kind::allocate) {
    ++in_use_[event.bytes];
    bytes_ += event.bytes;
    is_peak_ |= bytes_ > peak_bytes_;
    peak_bytes_ = std::max(peak_bytes_, bytes_);
  } else if (event.kind == Event::Kind::free) {
    if (is_peak_) at_peak_ = in_use_;
    is_peak_ = false;
    if (--in_use_[event.bytes] == 0) in_use_.erase(event.bytes);
    bytes_ -= event.bytes;
  }
}

std::vector<PeakWatch::Blocks> PeakWatch::at_peak() const {
  const std::lock_guard lock(mutex_);
  std::vector<Blocks> blocks;
  for (const auto& [bytes, count] : is_peak_ ? in_use_ : at_peak_) blocks.push_back({bytes, count});
  return {blocks.rbegin(), blocks.rend()};
}

}  // namespace cuttle::memory
