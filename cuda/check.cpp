#include "cuda/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cuttle/error.hpp"

namespace cuttle::cuda {

namespace {

/// After these the driver refuses every further call of the process.
bool is_sticky(cudaError_t status) {
  switch (status) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable: return true;
    default: return false;
  }
}

const char* hint_for(cudaError_t status) {
  if (is_sticky(status)) {
    return "a kernel broke this process's use of the card: restart; run under compute-sanitizer to find it";
  }
  switch (status) {
    case cudaErrorDevicesUnavailable:
      return "another process has this card for itself: end it, or choose another card with --device";
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidDeviceFunction:
      return "this build has no code for this card: configure with -DCMAKE_CUDA_ARCHITECTURES=native";
    case cudaErrorUnsupportedPtxVersion: return "the driver is older than the toolkit of this build: update the driver";
    default: return "";
  }
}

/// cuDNN is several files, which it opens one by one.
std::string hint_for(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH:
    case CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED:
      return fmt::format(
          "{} (cuDNN {}) needs its other libraries beside it, of the same version: put one whole cuDNN "
          "first in LD_LIBRARY_PATH, or do without: --conv gemm",
          file_of(Library::cudnn), cudnn_version_text(cudnnGetVersion()));
    case CUDNN_STATUS_NOT_INITIALIZED: return "cuDNN may not know this card or this driver: cuttle doctor shows both";
    default: return {};
  }
}

constexpr const char* kLessMemory = "end other processes on the card, or choose another one with --device";

}  // namespace

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  const std::string cause =
      fmt::format("CUDA: {} failed: {} ({})", call, cudaGetErrorString(status), cudaGetErrorName(status));
  cudaGetLastError();  // a recoverable error must not be met again by the next check; a sticky one comes back anyway
  if (status == cudaErrorMemoryAllocation) throw OutOfMemoryError(cause, kLessMemory);
  throw DeviceError(cause, hint_for(status));
}

std::string cudnn_message() {
  std::array<char, 2048> text{};
  cudnnGetLastErrorString(text.data(), text.size());
  std::string message(text.data());
  std::replace(message.begin(), message.end(), '\n', ' ');
  return message;
}

void check(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  throw CudnnError(fmt::format("cuDNN: {} failed: {}: {}", call, cudnnGetErrorString(status), cudnn_message()),
                   hint_for(status));
}

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const std::string cause = fmt::format("cuBLAS: {} failed: {}", call, cublasGetStatusString(status));
  if (status == CUBLAS_STATUS_ALLOC_FAILED) throw OutOfMemoryError(cause, kLessMemory);
  throw DeviceError(cause);
}

}  // namespace cuttle::cuda
