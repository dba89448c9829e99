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

}  // namespace

void check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  const std::string cause =
      fmt::format("CUDA: {} failed: {} ({})", call, cudaGetErrorString(status), cudaGetErrorName(status));
  if (is_sticky(status)) {
    throw DeviceError(cause,
                      "a kernel broke the process's CUDA context: restart; run under compute-sanitizer to find it");
  }
  cudaGetLastError();  // a recoverable error must not be met again by the next check
  throw DeviceError(cause);
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
  throw CudnnError(fmt::format("cuDNN: {} failed: {}: {}", call, cudnnGetErrorString(status), cudnn_message()));
}

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw DeviceError(fmt::format("cuBLAS: {} failed: {}", call, cublasGetStatusString(status)));
}

}  // namespace cuttle::cuda
