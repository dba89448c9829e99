#include "cuda/check.hpp"
#include "cuda/runtime/backend.hpp"
#include "cuda/runtime/context.hpp"

namespace cuttle::cuda {

namespace {

void host_to_device(Context& context, void* to, const void* from, std::size_t bytes) {
  context.refuse_recording("a copy from host memory");
  context.uploads().upload(to, from, bytes);
}

void device_to_host(Context& context, void* to, const void* from, std::size_t bytes) {
  context.refuse_recording("a copy to host memory");
  CUTTLE_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, context.stream()));
  CUTTLE_CUDA(cudaStreamSynchronize(context.stream()));
}

/// The copy runs on the target's stream, behind the source's queue; what the source queues next waits for it, for it
/// may overwrite what is being read.
void between_devices(int to_index, void* to, int from_index, const void* from, std::size_t bytes) {
  Context& source = context(from_index);
  source.refuse_recording("a copy to another device");
  const EventHandle written = make_event();
  CUTTLE_CUDA(cudaEventRecord(written.get(), source.stream()));
  Context& target = context(to_index);
  target.refuse_recording("a copy from another device");
  const EventHandle read = make_event();
  CUTTLE_CUDA(cudaStreamWaitEvent(target.stream(), written.get()));
  CUTTLE_CUDA(cudaMemcpyPeerAsync(to, to_index, from, from_index, bytes, target.stream()));
  CUTTLE_CUDA(cudaEventRecord(read.get(), target.stream()));
  CUTTLE_CUDA(cudaStreamWaitEvent(source.stream(), read.get()));
}

class DeviceUpload final : public Upload {
 public:
  DeviceUpload(const Tensor& to, const void* from) : to_(to), context_(&context(to)), arrived_(make_event()) {
    context_->refuse_recording("a copy from host memory");
    context_->uploads().upload(to.raw_mutable_data(), from, to.nbytes(), arrived_.get());
  }
  /// Whoever gets this memory next must not be overwritten by bytes still on their way.
  ~DeviceUpload() override {
    if (!joined_) cudaStreamWaitEvent(context_->stream(), arrived_.get());
  }
  void join() override {
    if (joined_) return;
    context_->refuse_recording("waiting for a copy");
    CUTTLE_CUDA(cudaStreamWaitEvent(context_->stream(), arrived_.get()));
    joined_ = true;
  }

 private:
  Tensor to_;  // keeps the memory until the bytes are there
  Context* context_;
  EventHandle arrived_;
  bool joined_ = false;
};

}  // namespace

void synchronize(int index) {
  const Context& c = context(index);
  c.refuse_recording("waiting for the device");
  CUTTLE_CUDA(cudaStreamSynchronize(c.copy_stream()));
  CUTTLE_CUDA(cudaStreamSynchronize(c.stream()));
}

void copy(void* to, Device to_device, const void* from, Device from_device, std::size_t bytes) {
  if (bytes == 0) return;
  if (from_device.is_cpu()) {
    host_to_device(context(to_device.index), to, from, bytes);
  } else if (to_device.is_cpu()) {
    device_to_host(context(from_device.index), to, from, bytes);
  } else if (to_device == from_device) {
    CUTTLE_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, context(to_device.index).stream()));
  } else {
    between_devices(to_device.index, to, from_device.index, from, bytes);
  }
}

std::unique_ptr<Upload> upload(const Tensor& to, const void* from) { return std::make_unique<DeviceUpload>(to, from); }

}  // namespace cuttle::cuda
