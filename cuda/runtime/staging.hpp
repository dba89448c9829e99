#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "cuda/handle.hpp"

/// Page-locked host memory: only from and to it does a copy run beside the host and beside kernels.
namespace cuttle::cuda {

/// An event without timing, for ordering only.
EventHandle make_event();

void free_pinned(std::byte* memory) noexcept;
using PinnedMemory = Handle<std::byte*, free_pinned>;
/// Throws OutOfMemoryError.
PinnedMemory allocate_pinned(std::size_t bytes);

/// Host memory that work on one stream reads from, reused in turn when that work is done. Not thread-safe.
class PinnedRing {
 public:
  PinnedRing(std::size_t slot_bytes, std::size_t most_slots) : slot_bytes_(slot_bytes), most_slots_(most_slots) {}

  std::size_t slot_bytes() const { return slot_bytes_; }
  /// At most slot_bytes() bytes to fill and then to copy from on `stream`, the same one each time, before the next
  /// call. Waits only where all slots are in flight and there may be no more of them.
  std::byte* take(std::size_t bytes, cudaStream_t stream);

 private:
  struct Slot {
    PinnedMemory memory;
    EventHandle done;  ///< recorded when the slot was left
  };
  void advance(cudaStream_t stream);

  std::size_t slot_bytes_, most_slots_;
  std::vector<Slot> slots_;
  std::size_t current_ = 0, used_ = 0;
};

/// A stretch of page-locked memory for bytes on their way to the host.
struct PinnedBuffer {
  PinnedMemory memory;
  std::size_t bytes = 0;
  EventHandle done;
};
/// Buffers are given back to be used again: locking pages takes longer than copying a loss. Thread-safe.
class PinnedPool {
 public:
  PinnedBuffer take(std::size_t bytes);
  void give_back(PinnedBuffer buffer) noexcept;

 private:
  std::mutex mutex_;
  std::vector<PinnedBuffer> free_;
};

}  // namespace cuttle::cuda
