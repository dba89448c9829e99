#include "core/capture.hpp"

#include <utility>

namespace cuttle {
namespace {

thread_local Device pool_device;
thread_local memory::PoolId pool = 0;
thread_local Tensor advance;

}  // namespace

AllocationScope::AllocationScope(Device device, memory::PoolId id)
    : device_before_(std::exchange(pool_device, device)), pool_before_(std::exchange(pool, id)) {}

AllocationScope::~AllocationScope() {
  pool_device = device_before_;
  pool = pool_before_;
}

memory::PoolId AllocationScope::pool_of(Device device) { return device == pool_device ? pool : 0; }

RandomAdvanceScope::RandomAdvanceScope(Tensor value) : before_(std::exchange(advance, std::move(value))) {}
RandomAdvanceScope::~RandomAdvanceScope() { advance = std::move(before_); }
const Tensor& RandomAdvanceScope::current() { return advance; }

}  // namespace cuttle
