#include "cuda/register.hpp"

#include <cuda_runtime.h>

#include "cuda/check.hpp"
#include "cuda/context.hpp"
#include "cuda/device.hpp"

namespace cuttle {

std::string register_cuda(Backend& backend) {
  if (std::string why = cuda::why_unusable(); !why.empty()) return why;
  backend.devices = cuda::list_devices;
  backend.make_source = cuda::make_source;
  backend.synchronize = [](int index) { CUTTLE_CUDA(cudaStreamSynchronize(cuda::context(index).stream())); };
  backend.copy = [](void* to, Device to_device, const void* from, Device from_device, std::size_t bytes) {
    const cuda::Context& context = cuda::context(to_device.is_cuda() ? to_device.index : from_device.index);
    CUTTLE_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, context.stream()));
    // The host side may be changed or freed as soon as this returns.
    if (to_device.is_cpu() || from_device.is_cpu()) CUTTLE_CUDA(cudaStreamSynchronize(context.stream()));
  };
  cuda::register_elementwise(backend.kernels);
  cuda::register_random(backend.kernels);
  cuda::register_conv(backend.kernels);
  cuda::register_linear(backend.kernels);
  cuda::register_pool(backend.kernels);
  cuda::register_norm(backend.kernels);
  cuda::register_classify(backend.kernels);
  cuda::register_optim(backend.kernels);
  return {};
}

}  // namespace cuttle
