#include "cuda/runtime/device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>

#include "cuda/check.hpp"
#include "cuda/runtime/context.hpp"
#include "cuda/runtime/virtual_memory.hpp"
#include "cuttle/error.hpp"

namespace cuttle::cuda {

namespace {

/// "13.0" of 13000.
std::string version_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

/// Asked once: some properties are read from the card, which takes milliseconds.
const cudaDeviceProp& properties_of(int index) {
  static std::mutex mutex;
  static auto& known = *new std::map<int, cudaDeviceProp>;
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(index); found != known.end()) return found->second;
  cudaDeviceProp properties{};
  CUTTLE_CUDA(cudaGetDeviceProperties(&properties, index));
  return known.emplace(index, properties).first->second;
}

/// While it lives, this thread may allocate although a stream is being captured somewhere.
class RelaxedCapture {
 public:
  RelaxedCapture() { exchange(); }
  ~RelaxedCapture() { exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  void exchange() noexcept {
    if (cudaThreadExchangeStreamCaptureMode(&mode_) != cudaSuccess) cudaGetLastError();
  }
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

class CudaSource final : public memory::MemorySource {
 public:
  explicit CudaSource(int index) : index_(index) {}

  void* allocate(std::size_t bytes) override {
    context(index_);
    const RelaxedCapture relaxed;
    void* pointer = nullptr;
    const cudaError_t status = cudaMalloc(&pointer, bytes);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();  // the allocator will try again or report: the next check must not find it
      return nullptr;
    }
    CUTTLE_CUDA(status);
    held_ += bytes;
    return pointer;
  }

  void deallocate(void* pointer, std::size_t bytes) noexcept override {
    const RelaxedCapture relaxed;
    // cudaFree waits for the device, so work that still uses the segment is done. At exit the driver may be gone.
    if (cudaFree(pointer) != cudaSuccess) cudaGetLastError();
    held_ -= bytes;
  }

  std::string name() const override { return fmt::format("cuda:{}", index_); }

  Addresses reserve() override {
    context(index_);
    const RelaxedCapture relaxed;
    if (!virtual_) virtual_ = VirtualMemory::of(index_);
    return virtual_ ? virtual_->reserve() : Addresses{};
  }

  void unreserve(Addresses addresses) noexcept override { virtual_->unreserve(addresses); }

  bool map(void* address, std::size_t bytes, std::size_t piece_bytes) override {
    context(index_);
    const RelaxedCapture relaxed;
    if (!virtual_->map(address, bytes, piece_bytes)) return false;
    held_ += bytes;
    return true;
  }

  void unmap(void* address, std::size_t bytes) noexcept override {
    wait_for_work();
    const RelaxedCapture relaxed;
    virtual_->unmap(address, bytes);
    held_ -= bytes;
  }

  std::size_t granularity() const override { return virtual_ ? virtual_->granularity() : 1; }

  std::optional<memory::SourceUsage> usage() const override {
    std::size_t free = 0, total = 0;
    const Context& c = context(index_);
    if (cudaMemGetInfo(&free, &total) != cudaSuccess) {
      cudaGetLastError();
      return std::nullopt;
    }
    // What is neither free nor ours. NVML tells apart what the driver keeps for itself.
    std::uint64_t used = total - free;
    if (const auto card = card_usage(index_)) used = card->used_bytes;
    const std::uint64_t ours = held_ + c.overhead_bytes();
    return memory::SourceUsage{free, total, used - std::min(used, ours)};
  }

 private:
  /// While a step is recorded none is queued: Recording waits before it begins.
  void wait_for_work() const noexcept {
    try {
      if (!context(index_).recording() && cudaDeviceSynchronize() != cudaSuccess) cudaGetLastError();
    } catch (const Error&) {
      return;  // at exit the driver may be gone, and its work with it
    }
  }

  int index_;
  std::uint64_t held_ = 0;
  std::unique_ptr<VirtualMemory> virtual_;
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
  return {};
}

std::string device_name(int index) {
  try {
    return properties_of(index).name;
  } catch (const Error&) {
    return "unknown card";
  }
}

std::optional<NvmlMemory> card_usage(int index) {
  std::array<char, 32> bus_id{};
  if (cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), index) != cudaSuccess) {
    cudaGetLastError();
    return std::nullopt;
  }
  const auto card = nvml_memory(bus_id.data());
  // A slice of a card (MIG) shares its bus id with the whole, whose figures would be wrong for it.
  if (!card || card->total_bytes > properties_of(index).totalGlobalMem / 10 * 11) return std::nullopt;
  return card;
}

std::vector<DeviceInfo> list_devices() {
  int count = 0;
  CUTTLE_CUDA(cudaGetDeviceCount(&count));
  std::vector<DeviceInfo> found;
  for (int i = 0; i < count; ++i) {
    const cudaDeviceProp& properties = properties_of(i);
    DeviceInfo info{{DeviceKind::cuda, i}, properties.name, properties.totalGlobalMem, 0};
    // NVML sees free memory without making a context, which would itself take some hundred MiB on every card.
    if (const auto card = card_usage(i)) {
      info.free_bytes = card->free_bytes;
    } else {
      try {
        std::size_t free = 0, total = 0;
        context(i);
        CUTTLE_CUDA(cudaMemGetInfo(&free, &total));
        info.free_bytes = free;
      } catch (const Error&) {
        info.free_bytes = 0;  // another process has it for itself: nothing is free for us
      }
    }
    found.push_back(std::move(info));
  }
  return found;
}

std::unique_ptr<memory::MemorySource> make_source(int index) { return std::make_unique<CudaSource>(index); }

std::vector<std::pair<std::string, std::string>> facts() {
  int driver = 0, runtime = 0;
  CUTTLE_CUDA(cudaDriverGetVersion(&driver));
  CUTTLE_CUDA(cudaRuntimeGetVersion(&runtime));
  const std::string nvml = nvml_driver_version();
  std::vector<std::pair<std::string, std::string>> found{
      {"NVIDIA driver", fmt::format("{}{}CUDA {}", nvml, nvml.empty() ? "" : ", ", version_text(driver))},
      {"CUDA runtime", version_text(runtime)},
      {"CUDA architectures", CUTTLE_CUDA_ARCHITECTURES}};
  try {
    const std::string version = cudnn_version_text(cudnnGetVersion());
    found.emplace_back("cuDNN", fmt::format("{} ({})", version, file_of(Library::cudnn)));
  } catch (const Error& error) {
    found.emplace_back("cuDNN", "none: " + error.cause());
  }
  try {
    std::array<int, 3> version{};
    for (const auto part : {MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL}) {
      CUTTLE_CUBLAS(cublasGetProperty(part, &version[static_cast<std::size_t>(part)]));
    }
    found.emplace_back("cuBLAS", fmt::format("{} ({})", fmt::join(version, "."), file_of(Library::cublas)));
  } catch (const Error& error) {
    found.emplace_back("cuBLAS", "none: " + error.cause());
  }
  return found;
}

}  // namespace cuttle::cuda
