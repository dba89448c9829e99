#pragma once
#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "cuda/handle.hpp"
#include "cuda/runtime/upload.hpp"
#include "cuttle/memory.hpp"
#include "cuttle/tensor.hpp"

namespace cuttle::cuda {

/// What one device's work needs: made on first use, never destroyed (tensors in static storage outlive everything).
/// Any thread may allocate and copy; one thread at a time computes.
class Context {
 public:
  explicit Context(int index);

  int index() const { return index_; }
  int multiprocessors() const { return multiprocessors_; }
  int capability() const { return capability_; }  ///< 90 is compute capability 9.0
  /// What the driver holds on the card for this process beside its allocations: code, stacks, the context itself.
  std::uint64_t overhead_bytes() const { return overhead_bytes_; }
  cudaStream_t stream() const { return compute_.get(); }
  cudaStream_t copy_stream() const { return copy_.get(); }
  /// Both are made on first use, for each takes a tenth of a second.
  cudnnHandle_t cudnn();
  cublasHandle_t cublas();
  Uploader& uploads() { return uploads_; }

  /// While a step is recorded nothing is run, so what waits for the device or copies from host memory is refused.
  bool recording() const { return recording_; }
  void refuse_recording(const char* what) const;  ///< DeviceError while a step is recorded
  /// While a step is recorded: what its kernels need at every replay, beside memory.
  void keep(std::shared_ptr<const void> used) {
    if (recording()) kept_.push_back(std::move(used));
  }
  // Called by Recording alone.
  void begin_recording() noexcept { recording_ = true; }
  /// Gives what was kept.
  std::vector<std::shared_ptr<const void>> end_recording() noexcept {
    recording_ = false;
    return std::exchange(kept_, {});
  }

 private:
  int index_;
  int multiprocessors_ = 0, capability_ = 0;
  std::uint64_t overhead_bytes_ = 0;
  StreamHandle compute_, copy_;
  Uploader uploads_;
  std::once_flag cudnn_once_, cublas_once_;
  CudnnHandle cudnn_;
  CublasHandle cublas_;
  Tensor cublas_workspace_;
  std::atomic<bool> recording_ = false;
  std::vector<std::shared_ptr<const void>> kept_;
};

/// The context of a device, which becomes the current one of this thread. Throws DeviceError naming the device.
Context& context(int index);
inline Context& context(const Tensor& t) { return context(t.device().index); }

}  // namespace cuttle::cuda
