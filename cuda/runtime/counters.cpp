#include "cuda/runtime/counters.hpp"

#include <algorithm>
#include <map>
#include <mutex>

#include "cuda/check.hpp"
#include "cuttle/memory.hpp"

namespace cuttle::cuda {

unsigned* block_counters(const Context& context, std::int64_t count) {
  constexpr std::int64_t kUsual = 4096;
  struct Counters {
    std::int64_t count = 0;
    void* memory = nullptr;
  };
  static std::mutex mutex;
  static auto& of_device = *new std::map<int, Counters>;  // never destroyed, as contexts are
  const std::lock_guard lock(mutex);
  Counters& counters = of_device[context.index()];
  if (counters.count < count) {
    context.refuse_recording("the first use of a reduction");
    // From the common pool, whoever asks. Smaller counters from before stay: a recorded step may use them.
    const Device device{DeviceKind::cuda, context.index()};
    const std::int64_t more = std::max(count, kUsual);
    const std::size_t bytes = static_cast<std::size_t>(more) * sizeof(unsigned);
    counters = {more, memory::CachingAllocator::pointer(memory::allocator(device).allocate(bytes))};
    CUTTLE_CUDA(cudaMemsetAsync(counters.memory, 0, bytes, context.stream()));
  }
  return static_cast<unsigned*>(counters.memory);
}

}  // namespace cuttle::cuda
