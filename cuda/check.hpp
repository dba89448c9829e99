#pragma once
#include <cuda_runtime.h>

#include <string>

#include "cuda/libraries.hpp"

/// Every call into a library goes through one of these: they throw with the call, the code and its text.
#define CUTTLE_CUDA(call) ::cuttle::cuda::check((call), #call)
#define CUTTLE_CUDNN(call) ::cuttle::cuda::check((call), #call)
#define CUTTLE_CUBLAS(call) ::cuttle::cuda::check((call), #call)
/// After a kernel launch: a bad launch configuration shows here, a fault inside the kernel at the next call that waits.
#define CUTTLE_LAUNCHED(kernel) ::cuttle::cuda::check(cudaGetLastError(), "launch of " kernel)

namespace cuttle::cuda {

/// DeviceError; its hint says whether the process can go on using the card. OutOfMemoryError where that is the reason.
void check(cudaError_t status, const char* call);
void check(cudnnStatus_t status, const char* call);   // CudnnError with cuDNN's own last error string
void check(cublasStatus_t status, const char* call);  // DeviceError or OutOfMemoryError

/// cuDNN's description of the latest failure in this thread, on one line.
std::string cudnn_message();

}  // namespace cuttle::cuda
