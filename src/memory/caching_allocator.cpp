#include <cstdlib>

#include "cuttle/memory.hpp"
#include "kernels.hpp"

namespace cuttle::memory {

struct Block {
  void* pointer;
  std::size_t bytes;
};
struct CachingAllocator::Impl {
  std::unique_ptr<MemorySource> source;
};
CachingAllocator::CachingAllocator(std::unique_ptr<MemorySource> source, Device) : impl_(new Impl{std::move(source)}) {}
CachingAllocator::~CachingAllocator() = default;
Block* CachingAllocator::allocate(std::size_t bytes, Stream, PoolId) {
  bytes = (bytes + 511) / 512 * 512;
  return new Block{impl_->source->allocate(bytes), bytes};
}
void CachingAllocator::free(Block* block) noexcept {
  impl_->source->deallocate(block->pointer, block->bytes);
  delete block;
}
void* CachingAllocator::pointer(const Block* block) noexcept { return block->pointer; }
std::size_t CachingAllocator::size(const Block* block) noexcept { return block->bytes; }
std::uint64_t CachingAllocator::empty_cache() { return 0; }

void* HostSource::allocate(std::size_t bytes) { return std::aligned_alloc(256, (bytes + 255) / 256 * 256); }
void HostSource::deallocate(void* pointer, std::size_t) noexcept { std::free(pointer); }
std::optional<SourceUsage> HostSource::usage() const { return SourceUsage{}; }

CachingAllocator& allocator(Device device) {
  static CachingAllocator* cpu = new CachingAllocator(backend(device.kind).make_source(device.index), device);
  return *cpu;
}

}  // namespace cuttle::memory
