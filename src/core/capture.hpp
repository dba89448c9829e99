#pragma once
#include "cuttle/memory.hpp"
#include "cuttle/tensor.hpp"

namespace cuttle {

/// While it lives, this thread's allocations on `device` come from `pool`: what a captured step uses must keep its
/// address for as long as the step may be replayed.
class AllocationScope {
 public:
  AllocationScope(Device device, memory::PoolId pool);
  ~AllocationScope();
  AllocationScope(const AllocationScope&) = delete;
  AllocationScope& operator=(const AllocationScope&) = delete;
  /// The pool that a new tensor on this device belongs to.
  static memory::PoolId pool_of(Device device);

 private:
  Device device_before_;
  memory::PoolId pool_before_;
};

/// While it lives, ops of this thread that draw random numbers add `advance` (i64 scalar on the device) to their
/// offsets when they run.
class RandomAdvanceScope {
 public:
  explicit RandomAdvanceScope(Tensor advance);
  ~RandomAdvanceScope();
  RandomAdvanceScope(const RandomAdvanceScope&) = delete;
  RandomAdvanceScope& operator=(const RandomAdvanceScope&) = delete;
  static const Tensor& current();  ///< undefined outside

 private:
  Tensor before_;
};

}  // namespace cuttle
