#include "cuda/register.hpp"

#include "cuda/conv/records.hpp"
#include "cuda/runtime/backend.hpp"
#include "cuda/runtime/device.hpp"

namespace cuttle {

std::string register_cuda(Backend& backend) {
  if (std::string why = cuda::why_unusable(); !why.empty()) return why;
  backend.devices = cuda::list_devices;
  backend.make_source = cuda::make_source;
  backend.synchronize = cuda::synchronize;
  backend.copy = cuda::copy;
  backend.capture = cuda::capture;
  backend.read_back = cuda::read_back;
  backend.upload = cuda::upload;
  backend.conv_plans = cuda::conv_plans;
  backend.facts = cuda::facts;
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
