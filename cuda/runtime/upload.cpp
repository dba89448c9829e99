#include "cuda/runtime/upload.hpp"

#include <algorithm>
#include <cstring>

#include "cuda/check.hpp"

namespace cuttle::cuda {

void Uploader::open(cudaStream_t compute, cudaStream_t copy) {
  compute_ = compute;
  copy_ = copy;
  reached_ = make_event();
  arrived_ = make_event();
}

void Uploader::upload(void* to, const void* from, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes <= kSmall) {
    pass_on(small_, to, from, bytes, compute_);
  } else {
    on_copy_stream(to, from, bytes, arrived_.get());
    CUTTLE_CUDA(cudaStreamWaitEvent(compute_, arrived_.get()));
  }
}

void Uploader::upload(void* to, const void* from, std::size_t bytes, cudaEvent_t arrived) {
  const std::lock_guard lock(mutex_);
  on_copy_stream(to, from, bytes, arrived);
}

void Uploader::on_copy_stream(void* to, const void* from, std::size_t bytes, cudaEvent_t arrived) {
  CUTTLE_CUDA(cudaEventRecord(reached_.get(), compute_));
  CUTTLE_CUDA(cudaStreamWaitEvent(copy_, reached_.get()));
  pass_on(large_, to, from, bytes, copy_);
  CUTTLE_CUDA(cudaEventRecord(arrived, copy_));
}

void Uploader::pass_on(PinnedRing& ring, void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t part = std::min(bytes - done, ring.slot_bytes());
    std::byte* staged = ring.take(part, stream);
    std::memcpy(staged, static_cast<const std::byte*>(from) + done, part);
    CUTTLE_CUDA(cudaMemcpyAsync(static_cast<std::byte*>(to) + done, staged, part, cudaMemcpyHostToDevice, stream));
    done += part;
  }
}

}  // namespace cuttle::cuda
