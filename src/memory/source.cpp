#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "cuttle/memory.hpp"
#include "memory/caching_allocator.hpp"
#include "memory/host_usage.hpp"

namespace cuttle::memory {
namespace {

constexpr std::size_t kHugePage = 2 * kMiB;

constexpr int kWritable = PROT_READ | PROT_WRITE, kMapping = MAP_PRIVATE | MAP_ANONYMOUS;

void* map_pages(std::size_t bytes, int protection, int flags) {
  void* address = mmap(nullptr, bytes, protection, flags, -1, 0);
  return address == MAP_FAILED ? nullptr : address;
}

/// Maps one huge page more than is asked for, to start on one, and gives the ends back.
std::byte* map_aligned(std::size_t bytes, int protection, int flags) {
  auto* start = static_cast<std::byte*>(map_pages(bytes + kHugePage, protection, flags));
  if (!start) return nullptr;
  const std::size_t before =
      round_up(reinterpret_cast<std::uintptr_t>(start), kHugePage) - reinterpret_cast<std::uintptr_t>(start);
  if (before > 0) munmap(start, before);
  munmap(start + before + bytes, kHugePage - before);
  return start + before;
}

/// Huge pages make the first write of 64 MiB take 46 ms instead of 126, and random reads half as long (2-core Xeon).
/// Advice only: a kernel without huge pages serves the mapping all the same.
void advise_huge_pages(void* address, std::size_t bytes) {
  if (address && bytes >= kHugePage) madvise(address, bytes, MADV_HUGEPAGE);
}

/// Linux promises more than it has and kills whoever touches too much; refusing gives an error that says why.
bool has_room(std::size_t bytes) {
  const auto known = host_usage();
  return !known || bytes <= known->free_bytes;
}

std::size_t page_bytes() {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace

// Mapped rather than taken from malloc, which keeps what is freed: empty_cache() must reach the system.
void* HostSource::allocate(std::size_t bytes) {
  if (!has_room(bytes)) return nullptr;
  const std::size_t mapped = round_up(bytes, page_bytes());
  if (mapped < kHugePage) return map_pages(mapped, kWritable, kMapping);
  void* address = map_aligned(mapped, kWritable, kMapping);
  advise_huge_pages(address, mapped);
  return address;
}

void HostSource::deallocate(void* pointer, std::size_t bytes) noexcept {
  munmap(pointer, round_up(bytes, page_bytes()));
}

std::optional<SourceUsage> HostSource::usage() const { return host_usage(); }

MemorySource::Addresses HostSource::reserve() {
  const auto known = host_usage();
  if (!known) return {};
  const std::size_t bytes = round_up(2 * known->total_bytes, kHugePage);
  return {map_aligned(bytes, PROT_NONE, kMapping | MAP_NORESERVE), bytes};
}

void HostSource::unreserve(Addresses addresses) noexcept { munmap(addresses.begin, addresses.bytes); }

bool HostSource::map(void* address, std::size_t bytes, std::size_t) {
  if (!has_room(bytes) || mprotect(address, bytes, kWritable) != 0) return false;
  advise_huge_pages(address, bytes);
  return true;
}

void HostSource::unmap(void* address, std::size_t bytes) noexcept {
  mmap(address, bytes, PROT_NONE, kMapping | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

std::size_t HostSource::granularity() const { return page_bytes(); }

CappedSource::CappedSource(std::unique_ptr<MemorySource> base, std::size_t capacity)
    : base_(std::move(base)), capacity_(capacity) {}

void* CappedSource::allocate(std::size_t bytes) {
  if (bytes > capacity_ - used_) return nullptr;
  void* pointer = base_->allocate(bytes);
  if (pointer) used_ += bytes;
  return pointer;
}

void CappedSource::deallocate(void* pointer, std::size_t bytes) noexcept {
  base_->deallocate(pointer, bytes);
  used_ -= bytes;
}

bool CappedSource::map(void* address, std::size_t bytes, std::size_t piece_bytes) {
  if (bytes > capacity_ - used_ || !base_->map(address, bytes, piece_bytes)) return false;
  used_ += bytes;
  return true;
}

void CappedSource::unmap(void* address, std::size_t bytes) noexcept {
  base_->unmap(address, bytes);
  used_ -= bytes;
}

std::string CappedSource::name() const { return "capped " + base_->name(); }

/// The imitated card has no other user.
std::optional<SourceUsage> CappedSource::usage() const {
  return SourceUsage{.free_bytes = capacity_ - used_, .total_bytes = capacity_, .other_processes_bytes = 0};
}

}  // namespace cuttle::memory
