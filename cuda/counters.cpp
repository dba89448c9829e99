#include "cuda/counters.hpp"

#include <algorithm>
#include <map>
#include <mutex>

#include "cuda/check.hpp"

namespace cuttle::cuda {

unsigned* block_counters(const Context& context, std::int64_t count) {
  constexpr std::int64_t kUsual = 4096;
  static std::mutex mutex;
  static auto& buffers = *new std::map<int, Tensor>;  // never destroyed, as contexts are
  const std::lock_guard lock(mutex);
  Tensor& buffer = buffers[context.index()];
  const std::int64_t bytes = std::max(count, kUsual) * static_cast<std::int64_t>(sizeof(unsigned));
  if (!buffer.defined() || buffer.numel() < bytes) {
    context.refuse_recording("the first use of a reduction");
    buffer = Tensor::empty({bytes}, {DType::u8, {DeviceKind::cuda, context.index()}});
    CUTTLE_CUDA(cudaMemsetAsync(buffer.raw_mutable_data(), 0, static_cast<std::size_t>(bytes), context.stream()));
  }
  return static_cast<unsigned*>(buffer.raw_mutable_data());
}

}  // namespace cuttle::cuda
