#include "cuda/context.hpp"

#include <array>
#include <mutex>

#include "cuda/check.hpp"
#include "cuttle/error.hpp"

namespace cuttle::cuda {

namespace {

/// cuBLAS wants a workspace of its own: without one it allocates while a graph is captured. NVIDIA recommends 32 MiB
/// on Hopper.
constexpr std::size_t kCublasWorkspaceBytes = std::size_t{32} << 20;
constexpr int kMaxDevices = 64;

Tensor bytes_on(int index, std::size_t bytes) {
  return Tensor::empty({static_cast<std::int64_t>(bytes)}, {DType::u8, {DeviceKind::cuda, index}});
}

}  // namespace

Context::Context(int index) : index_(index) {
  CUTTLE_CUDA(cudaSetDevice(index));
  CUTTLE_CUDA(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, index));
  cudaStream_t stream = nullptr;
  CUTTLE_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  compute_.reset(stream);
  CUTTLE_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  copy_.reset(stream);
}

cudnnHandle_t Context::cudnn() {
  if (!cudnn_) {
    cudnnHandle_t handle = nullptr;
    CUTTLE_CUDNN(cudnnCreate(&handle));
    cudnn_.reset(handle);
    CUTTLE_CUDNN(cudnnSetStream(handle, stream()));
  }
  return cudnn_.get();
}

cublasHandle_t Context::cublas() {
  if (!cublas_) {
    cublasHandle_t handle = nullptr;
    CUTTLE_CUBLAS(cublasCreate(&handle));
    cublas_.reset(handle);
    CUTTLE_CUBLAS(cublasSetStream(handle, stream()));
    cublas_workspace_ = bytes_on(index_, kCublasWorkspaceBytes);
    CUTTLE_CUBLAS(cublasSetWorkspace(handle, cublas_workspace_.raw_mutable_data(), kCublasWorkspaceBytes));
  }
  return cublas_.get();
}

void* Context::workspace(std::size_t bytes) {
  if (bytes == 0) return nullptr;
  if (!workspace_.defined() || workspace_.nbytes() < bytes) {
    workspace_ = {};  // first give back the smaller one; stream order protects work that still uses it
    workspace_ = bytes_on(index_, bytes);
  }
  return workspace_.raw_mutable_data();
}

Context& context(int index) {
  static std::mutex mutex;
  static auto& contexts = *new std::array<std::unique_ptr<Context>, kMaxDevices>;
  thread_local int current = -1;
  if (index < 0 || index >= kMaxDevices) throw DeviceError("no CUDA device has index " + std::to_string(index));
  std::lock_guard lock(mutex);
  auto& mine = contexts[static_cast<std::size_t>(index)];
  if (!mine) mine = std::make_unique<Context>(index);
  if (current != index) {
    CUTTLE_CUDA(cudaSetDevice(index));
    current = index;
  }
  return *mine;
}

}  // namespace cuttle::cuda
