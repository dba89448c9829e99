#include <utility>

#include "cuda/check.hpp"
#include "cuda/runtime/backend.hpp"
#include "cuda/runtime/context.hpp"

namespace cuttle::cuda {

namespace {

PinnedPool& buffers() {
  static auto& pool = *new PinnedPool;  // never destroyed, as contexts are
  return pool;
}

class DeviceReadback final : public Readback {
 public:
  explicit DeviceReadback(const Tensor& t) {
    const Context& c = context(t);
    c.refuse_recording("reading a tensor back");
    buffer_ = buffers().take(t.nbytes());
    if (t.nbytes() > 0) {
      CUTTLE_CUDA(cudaMemcpyAsync(buffer_.memory.get(), t.raw_data(), t.nbytes(), cudaMemcpyDeviceToHost, c.stream()));
    }
    CUTTLE_CUDA(cudaEventRecord(buffer_.done.get(), c.stream()));
  }
  /// The buffer's next user may be another device, so the bytes must have arrived.
  ~DeviceReadback() override {
    if (!arrived_ && cudaEventSynchronize(buffer_.done.get()) != cudaSuccess) cudaGetLastError();
    buffers().give_back(std::move(buffer_));
  }
  bool ready() override {
    if (arrived_) return true;
    const cudaError_t status = cudaEventQuery(buffer_.done.get());
    if (status == cudaErrorNotReady) {
      cudaGetLastError();
      return false;
    }
    CUTTLE_CUDA(status);
    return arrived_ = true;
  }
  const void* wait() override {
    if (!arrived_) CUTTLE_CUDA(cudaEventSynchronize(buffer_.done.get()));
    arrived_ = true;
    return buffer_.memory.get();
  }

 private:
  PinnedBuffer buffer_;
  bool arrived_ = false;
};

}  // namespace

std::unique_ptr<Readback> read_back(const Tensor& t) { return std::make_unique<DeviceReadback>(t); }

}  // namespace cuttle::cuda
