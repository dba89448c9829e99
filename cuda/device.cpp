#include "cuda/device.hpp"

#include <fmt/format.h>

#include <array>

#include "cuda/check.hpp"
#include "cuda/context.hpp"
#include "cuda/nvml.hpp"

namespace cuttle::cuda {

namespace {

std::string bus_id(int index) {
  std::array<char, 32> text{};
  CUTTLE_CUDA(cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), index));
  return text.data();
}

/// "13.0" of 13000.
std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

class CudaSource final : public memory::MemorySource {
 public:
  explicit CudaSource(int index) : index_(index) {}

  void* allocate(std::size_t bytes) override {
    context(index_);
    void* pointer = nullptr;
    const cudaError_t status = cudaMalloc(&pointer, bytes);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // the allocator will try again or report: the next check must not find it
      return nullptr;
    }
    CUTTLE_CUDA(status);
    return pointer;
  }

  void deallocate(void* pointer, std::size_t) noexcept override {
    // cudaFree waits for the device, so work that still uses the segment is done. At exit the driver may be gone.
    cudaFree(pointer);
  }

  std::string name() const override { return fmt::format("cuda:{}", index_); }

  std::optional<memory::SourceUsage> usage() const override {
    context(index_);
    std::size_t free = 0, total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) {
      cudaGetLastError();
      return std::nullopt;
    }
    memory::SourceUsage usage{free, total, 0};
    return usage;
  }

 private:
  int index_;
};

}  // namespace

std::string why_unusable() {
  int driver = 0, runtime = 0, count = 0;
  cudaRuntimeGetVersion(&runtime);
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    cudaGetLastError();
    return "no NVIDIA driver is loaded on this machine";
  }
  const cudaError_t status = cudaGetDeviceCount(&count);
  cudaGetLastError();
  if (status == cudaErrorInsufficientDriver) {
    return fmt::format("the driver knows CUDA {}, this build needs CUDA {}: update the driver", version_text(driver),
                       version_text(runtime));
  }
  if (status == cudaErrorNoDevice || (status == cudaSuccess && count == 0)) {
    return "the driver shows no GPU (is CUDA_VISIBLE_DEVICES set?)";
  }
  if (status != cudaSuccess) return fmt::format("{} ({})", cudaGetErrorString(status), cudaGetErrorName(status));
  if (const std::size_t found = cudnnGetVersion(); found / 10000 != CUDNN_MAJOR) {
    return fmt::format("cuDNN {} is loaded, this build needs cuDNN {}", found / 10000, CUDNN_MAJOR);
  }
  return {};
}

std::vector<DeviceInfo> list_devices() {
  int count = 0;
  CUTTLE_CUDA(cudaGetDeviceCount(&count));
  std::vector<DeviceInfo> found;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    CUTTLE_CUDA(cudaGetDeviceProperties(&properties, i));
    DeviceInfo info{{DeviceKind::cuda, i}, properties.name, properties.totalGlobalMem, 0};
    // NVML sees free memory without making a context, which would itself take some hundred MiB on every card.
    if (const auto memory = nvml_memory(bus_id(i))) {
      info.free_bytes = memory->free_bytes;
    } else {
      std::size_t free = 0, total = 0;
      context(i);
      CUTTLE_CUDA(cudaMemGetInfo(&free, &total));
      info.free_bytes = free;
    }
    found.push_back(std::move(info));
  }
  return found;
}

std::unique_ptr<memory::MemorySource> make_source(int index) { return std::make_unique<CudaSource>(index); }

}  // namespace cuttle::cuda
