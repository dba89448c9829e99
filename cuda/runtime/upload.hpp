#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <mutex>

#include "cuda/runtime/staging.hpp"

namespace cuttle::cuda {

/// Copies from host memory to one device through page-locked memory, so that nobody waits: the host side may change or
/// go once a call returns. Small copies go on the compute stream itself; large ones on the copy stream, behind what the
/// compute stream had queued before (which may still use the memory that is written to).
class Uploader {
 public:
  void open(cudaStream_t compute, cudaStream_t copy);  ///< once, before anything else
  /// What is queued on the compute stream from now on sees the bytes.
  void upload(void* to, const void* from, std::size_t bytes);
  /// The same for work that waits for `arrived` only: work queued in between runs beside the copy.
  void upload(void* to, const void* from, std::size_t bytes, cudaEvent_t arrived);

 private:
  void pass_on(PinnedRing& ring, void* to, const void* from, std::size_t bytes, cudaStream_t stream);
  void on_copy_stream(void* to, const void* from, std::size_t bytes, cudaEvent_t arrived);

  static constexpr std::size_t kSmall = std::size_t{64} << 10;
  std::mutex mutex_;
  cudaStream_t compute_ = nullptr, copy_ = nullptr;
  PinnedRing small_{std::size_t{1} << 20, 8};
  // More slots than a batch of ImageNet takes: the copy of the next one may have to wait for the step before it.
  PinnedRing large_{std::size_t{4} << 20, 32};
  EventHandle reached_, arrived_;
};

}  // namespace cuttle::cuda
