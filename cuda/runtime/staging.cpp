#include "cuda/runtime/staging.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "cuda/check.hpp"

namespace cuttle::cuda {

EventHandle make_event() {
  cudaEvent_t event = nullptr;
  CUTTLE_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  return EventHandle(event);
}

void free_pinned(std::byte* memory) noexcept { cudaFreeHost(memory); }

PinnedMemory allocate_pinned(std::size_t bytes) {
  void* memory = nullptr;
  CUTTLE_CUDA(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable));
  return PinnedMemory(static_cast<std::byte*>(memory));
}

std::byte* PinnedRing::take(std::size_t bytes, cudaStream_t stream) {
  if (slots_.empty()) {
    slots_.push_back({allocate_pinned(slot_bytes_), make_event()});
  } else if (used_ + bytes > slot_bytes_) {
    advance(stream);
  }
  std::byte* place = slots_[current_].memory.get() + used_;
  used_ = std::min(slot_bytes_, (used_ + bytes + 255) / 256 * 256);
  return place;
}

void PinnedRing::advance(cudaStream_t stream) {
  CUTTLE_CUDA(cudaEventRecord(slots_[current_].done.get(), stream));
  const std::size_t next = (current_ + 1) % slots_.size();
  const cudaError_t status = cudaEventQuery(slots_[next].done.get());
  if (status == cudaErrorNotReady) {
    cudaGetLastError();
    if (slots_.size() < most_slots_) {
      // A new slot takes its place in the order of use: behind this one, before the oldest.
      slots_.insert(slots_.begin() + static_cast<std::ptrdiff_t>(current_ + 1),
                    Slot{allocate_pinned(slot_bytes_), make_event()});
      ++current_;
      used_ = 0;
      return;
    }
    CUTTLE_CUDA(cudaEventSynchronize(slots_[next].done.get()));
  } else {
    CUTTLE_CUDA(status);
  }
  current_ = next;
  used_ = 0;
}

PinnedBuffer PinnedPool::take(std::size_t bytes) {
  const std::size_t wanted = std::bit_ceil(std::max<std::size_t>(bytes, 256));
  {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(free_, wanted, &PinnedBuffer::bytes);
    if (found != free_.end()) {
      PinnedBuffer buffer = std::move(*found);
      free_.erase(found);
      return buffer;
    }
    free_.reserve(free_.capacity() + 1);  // so that give_back cannot fail
  }
  return {allocate_pinned(wanted), wanted, make_event()};
}

void PinnedPool::give_back(PinnedBuffer buffer) noexcept {
  const std::lock_guard lock(mutex_);
  if (free_.size() < free_.capacity()) free_.push_back(std::move(buffer));
}

}  // namespace cuttle::cuda
