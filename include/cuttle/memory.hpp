#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cuttle/device.hpp"

namespace cuttle::memory {

/// What a device holds as the system sees it, this process and others.
struct SourceUsage {
  std::uint64_t free_bytes = 0, total_bytes = 0;
  std::uint64_t other_processes_bytes = 0;
};

/// Where segments come from: cudaMalloc, host memory, or an imitation of a small card. Not thread-safe by itself; the
/// allocator calls it under its lock.
class MemorySource {
 public:
  virtual ~MemorySource() = default;
  /// At least `bytes` bytes aligned to 256, or nullptr when there is no room (never throws for that).
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void deallocate(void* pointer, std::size_t bytes) noexcept = 0;
  virtual std::string name() const = 0;
  virtual std::optional<SourceUsage> usage() const { return std::nullopt; }

  // Where it can, addresses are had apart from memory: what is mapped at neighbouring addresses serves one block, so
  // that no hole is too small only because it ends where an allocation did. The default cannot.

  struct Addresses {
    void* begin = nullptr;  ///< null: none are to be had
    std::size_t bytes = 0;
  };
  /// More addresses than the device has memory, aligned to granularity(), with nothing behind them.
  virtual Addresses reserve() { return {}; }
  virtual void unreserve(Addresses) noexcept {}  ///< when nothing is mapped there
  /// Puts memory behind reserved addresses, in pieces of `piece_bytes` (the last may be smaller); false where there is
  /// no room for all of it. Address and sizes are multiples of granularity().
  virtual bool map(void* /*address*/, std::size_t /*bytes*/, std::size_t /*piece_bytes*/) { return false; }
  virtual void unmap(void* /*address*/, std::size_t /*bytes*/) noexcept {}  ///< one piece
  virtual std::size_t granularity() const { return 1; }                     ///< bytes
};

/// Host memory, aligned to 256 bytes.
class HostSource final : public MemorySource {
 public:
  void* allocate(std::size_t bytes) override;
  void deallocate(void* pointer, std::size_t bytes) noexcept override;
  std::string name() const override { return "host"; }
  std::optional<SourceUsage> usage() const override;
  Addresses reserve() override;
  void unreserve(Addresses addresses) noexcept override;
  bool map(void* address, std::size_t bytes, std::size_t piece_bytes) override;
  void unmap(void* address, std::size_t bytes) noexcept override;
  std::size_t granularity() const override;
};

/// Imitates a card of `capacity` bytes on top of another source.
class CappedSource final : public MemorySource {
 public:
  CappedSource(std::unique_ptr<MemorySource> base, std::size_t capacity);
  void* allocate(std::size_t bytes) override;
  void deallocate(void* pointer, std::size_t bytes) noexcept override;
  std::string name() const override;
  std::optional<SourceUsage> usage() const override;
  Addresses reserve() override { return base_->reserve(); }
  void unreserve(Addresses addresses) noexcept override { base_->unreserve(addresses); }
  bool map(void* address, std::size_t bytes, std::size_t piece_bytes) override;
  void unmap(void* address, std::size_t bytes) noexcept override;
  std::size_t granularity() const override { return base_->granularity(); }

 private:
  std::unique_ptr<MemorySource> base_;
  std::size_t capacity_, used_ = 0;
};

using Stream = std::uint64_t;  ///< 0 is the default compute stream; a block is reused only on its own stream
using PoolId = std::uint32_t;  ///< 0 is the common pool; others are private to a captured graph

struct Stats {
  std::uint64_t allocated_bytes = 0;  ///< in blocks that callers hold, rounded to block sizes
  std::uint64_t requested_bytes = 0;  ///< what those callers asked for
  std::uint64_t reserved_bytes = 0;   ///< in segments taken from the source
  std::uint64_t peak_allocated_bytes = 0, peak_reserved_bytes = 0;
  std::uint64_t allocations = 0, frees = 0;                ///< calls served
  std::uint64_t source_allocations = 0, source_frees = 0;  ///< calls that reached the source
  std::uint64_t retries = 0;        ///< times the cache was released because the source had no room
  std::uint64_t out_of_memory = 0;  ///< requests that failed even then
  std::uint64_t segments = 0;       ///< pieces that the source gave and has not got back
  std::uint64_t active_blocks = 0, free_blocks = 0;
  std::uint64_t largest_free_block_bytes = 0;
  /// 1 - largest free block / all free bytes in segments: 0 is one hole, near 1 is dust.
  double fragmentation = 0;
};

struct Event {
  enum class Kind : std::uint8_t { allocate, free, segment_allocate, segment_free, out_of_memory };
  Kind kind;
  const void* address;
  std::size_t bytes;
  Stream stream;
  PoolId pool;
};

struct Block;  ///< opaque; see src/memory

/// One block as `snapshot()` lists it.
struct BlockInfo {
  const void* address;
  std::size_t bytes, requested_bytes;
  bool allocated;
  PoolId pool;
};
/// Memory without a gap.
struct SegmentInfo {
  const void* address;
  std::size_t bytes;
  Stream stream;
  std::vector<BlockInfo> blocks;  ///< by address
};

/// Caching allocator after PyTorch's: memory is taken from the source, split into blocks, coalesced on free, and kept
/// for reuse until empty_cache() or until the source has no room. Thread-safe. Constants and their reasons are in
/// src/memory/caching_allocator.hpp.
class CachingAllocator {
 public:
  explicit CachingAllocator(std::unique_ptr<MemorySource> source, Device device = kCpu);
  ~CachingAllocator();
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  /// A block of at least `bytes` bytes (> 0), aligned to 256. Throws OutOfMemoryError stating requested, allocated,
  /// reserved, largest free block and what other processes hold, after releasing the cache and trying again.
  Block* allocate(std::size_t bytes, Stream stream = 0, PoolId pool = 0);
  void free(Block* block) noexcept;  ///< nullptr is allowed
  static void* pointer(const Block* block) noexcept;
  static std::size_t size(const Block* block) noexcept;

  /// Returns to the source what it gave, as far as no block is in use in it; returns the bytes given back.
  std::uint64_t empty_cache();
  /// Upper bound of reserved bytes; nullopt lifts it. Reserved memory above a new limit is released where it can be.
  void set_limit(std::optional<std::uint64_t> bytes);
  std::optional<std::uint64_t> limit() const;

  /// A pool takes what the common one has free, then memory of its own. Both it keeps: nobody else gets it and
  /// empty_cache() leaves it where it is.
  PoolId create_private_pool();
  /// Its memory goes to the common pool, blocks in use when they are free.
  void release_private_pool(PoolId pool);

  Stats stats() const;
  void reset_peak_stats();
  std::vector<SegmentInfo> snapshot() const;
  /// Called under the lock for each event: it must be short and must not allocate from this allocator.
  void set_event_hook(std::function<void(const Event&)> hook);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The allocator that every tensor, workspace and optimizer state of a device comes from. Created on first use.
CachingAllocator& allocator(Device device);

}  // namespace cuttle::memory

namespace cuttle {
/// Gives cached, unused memory of every device back to the system; returns the bytes.
std::uint64_t empty_cache();
}  // namespace cuttle
