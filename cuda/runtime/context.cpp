#include "cuda/runtime/context.hpp"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "cuda/check.hpp"
#include "cuda/runtime/device.hpp"
#include "cuttle/error.hpp"

namespace cuttle::cuda {

namespace {

/// cuBLAS wants a workspace of its own: without one it allocates while a graph is captured. NVIDIA recommends 32 MiB
/// on Hopper.
constexpr std::int64_t kCublasWorkspaceBytes = std::int64_t{32} << 20;
constexpr int kMaxDevices = 64;

StreamHandle make_stream() {
  cudaStream_t stream = nullptr;
  CUTTLE_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return StreamHandle(stream);
}

int attribute(cudaDeviceAttr which, int index) {
  int value = 0;
  CUTTLE_CUDA(cudaDeviceGetAttribute(&value, which, index));
  return value;
}

std::unique_ptr<Context> make_context(int index) {
  int count = 0;
  CUTTLE_CUDA(cudaGetDeviceCount(&count));
  if (index < 0 || index >= count) {
    throw DeviceError(fmt::format("there is no device cuda:{}: this machine shows {}", index, count),
                      "cuttle doctor lists the devices");
  }
  try {
    return std::make_unique<Context>(index);
  } catch (const Error& error) {
    throw DeviceError(fmt::format("cuda:{} ({}) cannot be used: {}", index, device_name(index), error.cause()),
                      error.hint());
  }
}

}  // namespace

Context::Context(int index) : index_(index) {
  const auto before = card_usage(index);
  CUTTLE_CUDA(cudaSetDevice(index));
  CUTTLE_CUDA(cudaFree(nullptr));  // CUDA 11's cudaSetDevice did not make the driver's context; harmless after it
  const auto after = card_usage(index);
  constexpr std::uint64_t kGuess = std::uint64_t{512} << 20;
  overhead_bytes_ =
      before && after && after->used_bytes > before->used_bytes ? after->used_bytes - before->used_bytes : kGuess;
  multiprocessors_ = attribute(cudaDevAttrMultiProcessorCount, index);
  capability_ =
      10 * attribute(cudaDevAttrComputeCapabilityMajor, index) + attribute(cudaDevAttrComputeCapabilityMinor, index);
  compute_ = make_stream();
  copy_ = make_stream();
  uploads_.open(stream(), copy_stream());
}

cudnnHandle_t Context::cudnn() {
  std::call_once(cudnn_once_, [this] {
    cudnnHandle_t handle = nullptr;
    CUTTLE_CUDNN(cudnnCreate(&handle));
    CudnnHandle owned(handle);
    CUTTLE_CUDNN(cudnnSetStream(handle, stream()));
    cudnn_ = std::move(owned);
  });
  return cudnn_.get();
}

cublasHandle_t Context::cublas() {
  std::call_once(cublas_once_, [this] {
    cublasHandle_t handle = nullptr;
    CUTTLE_CUBLAS(cublasCreate(&handle));
    CublasHandle owned(handle);
    CUTTLE_CUBLAS(cublasSetStream(handle, stream()));  // this first: it takes the workspace away
    cublas_workspace_ = Tensor::empty({kCublasWorkspaceBytes}, {DType::u8, {DeviceKind::cuda, index_}});
    CUTTLE_CUBLAS(cublasSetWorkspace(handle, cublas_workspace_.raw_mutable_data(), cublas_workspace_.nbytes()));
    cublas_ = std::move(owned);
  });
  return cublas_.get();
}

void Context::refuse_recording(const char* what) const {
  if (recording()) {
    throw DeviceError(
        fmt::format("{} on cuda:{} while a step is being recorded, which cannot be replayed", what, index_),
        "do it before or after the step");
  }
}

Context& context(int index) {
  static std::array<std::atomic<Context*>, kMaxDevices> contexts{};
  static std::mutex mutex;
  if (index < 0 || index >= kMaxDevices) throw DeviceError(fmt::format("there is no device cuda:{}", index));
  std::atomic<Context*>& slot = contexts[static_cast<std::size_t>(index)];
  Context* mine = slot.load(std::memory_order_acquire);
  if (!mine) {
    const std::lock_guard lock(mutex);
    mine = slot.load(std::memory_order_acquire);
    if (!mine) {
      mine = make_context(index).release();
      slot.store(mine, std::memory_order_release);
    }
  }
  // Another library in the program may have chosen another device in this thread; asking costs nanoseconds.
  int current = -1;
  CUTTLE_CUDA(cudaGetDevice(&current));
  if (current != index) CUTTLE_CUDA(cudaSetDevice(index));
  return *mine;
}

}  // namespace cuttle::cuda
