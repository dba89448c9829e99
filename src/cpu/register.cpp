#include "cpu/register.hpp"

#include <cstring>

#include "cpu/cpu_info.hpp"
#include "cuttle/device.hpp"
#include "kernels.hpp"

namespace cuttle {

void register_cpu(Backend& backend) {
  backend.devices = [] {
    const memory::SourceUsage usage = memory::HostSource().usage().value_or(memory::SourceUsage{});
    return std::vector<DeviceInfo>{{kCpu, cpu::processor_name(), usage.total_bytes, usage.free_bytes}};
  };
  backend.make_source = [](int) -> std::unique_ptr<memory::MemorySource> {
    return std::make_unique<memory::HostSource>();
  };
  backend.synchronize = [](int) {};
  backend.copy = [](void* to, Device, const void* from, Device, std::size_t bytes) { std::memcpy(to, from, bytes); };
  cpu::register_elementwise(backend.kernels);
  cpu::register_random(backend.kernels);
  cpu::register_conv(backend.kernels);
  cpu::register_linear(backend.kernels);
  cpu::register_pool(backend.kernels);
  cpu::register_norm(backend.kernels);
  cpu::register_classify(backend.kernels);
  cpu::register_optim(backend.kernels);
}

}  // namespace cuttle
