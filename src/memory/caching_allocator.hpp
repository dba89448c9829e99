#pragma once
#include <algorithm>
#include <cstddef>

/// The allocator's constants, and the sizes that follow from them.
namespace cuttle::memory {

inline constexpr std::size_t kKiB = 1024, kMiB = 1024 * kKiB;

/// Blocks are multiples of 512 bytes: a warp reads 512 bytes as float4, so no tensor starts inside another's access,
/// and every block keeps the 256-byte alignment of cudaMalloc.
inline constexpr int kRoundingBits = 9;
inline constexpr std::size_t kRounding = std::size_t{1} << kRoundingBits;

/// No larger block can exist: 47 bits are the user half of the address space of x86-64 (and rounding cannot overflow).
inline constexpr int kMaxBlockBits = 47;
inline constexpr std::size_t kMaxBlockBytes = std::size_t{1} << kMaxBlockBits;

/// Requests up to 1 MiB are "small" and live in segments of their own, so that a bias or a loss scalar that lives long
/// never pins the middle of a segment that activations come and go in. Half a small segment, so that two fit in one.
inline constexpr std::size_t kSmallRequest = 1 * kMiB;

/// cudaMalloc maps the card in 2 MiB pages and a huge page of the host is 2 MiB: a smaller segment would waste the
/// rest.
inline constexpr std::size_t kSmallSegment = 2 * kMiB;

/// Large requests share segments of 20 MiB or more: a call of the source costs 0.1 to 1 ms on a card, and two to
/// eighteen blocks share it here.
inline constexpr std::size_t kLargeSegment = 20 * kMiB;

/// From half a large segment on a request gets a segment of its own: sharing could leave almost half of it unused.
inline constexpr std::size_t kOwnSegmentRequest = kLargeSegment / 2;

/// Own segments are rounded to the 2 MiB pages that the card and the host's huge pages spend anyway.
inline constexpr std::size_t kOwnSegmentRounding = 2 * kMiB;

/// A large segment is at least 1/16 of what is already reserved: holes merge only within a segment, and where every
/// tensor has its own, batches of changing size leave many that fit nothing. The replay in bench/allocator_bench.cpp
/// (ResNet-50, batches of 8 to 16) reserves 16% more than its peak in use with this and 135% more without (2% where
/// addresses are reserved); smaller divisors leave more of the last segment empty and give empty_cache() less to give
/// back.
inline constexpr std::size_t kGrowthDivisor = 16;

/// Where addresses can be reserved, memory comes in extents of 2 MiB pages, as many as are needed but at least so much,
/// and at least 1/32 of what is reserved up to then: a call of the source costs some 0.1 ms, and steps of a fixed size
/// would leave much of a small network's memory empty.
inline constexpr std::size_t kLeastExtent = 2 * kMiB;
inline constexpr std::size_t kMostExtraBytes = 20 * kMiB;
inline constexpr std::size_t kExtentDivisor = 32;
/// Larger ones are divided: an extent can be given back only when nobody uses any part of it.
inline constexpr std::size_t kMostExtent = 64 * kMiB;

constexpr std::size_t round_up(std::size_t bytes, std::size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

constexpr bool is_small(std::size_t block_bytes) { return block_bytes <= kSmallRequest; }

/// Size of the segment that is asked for where no free block holds `block_bytes` and memory is not short, of a source
/// that cannot reserve addresses.
constexpr std::size_t segment_bytes(std::size_t block_bytes, std::size_t reserved_bytes) {
  if (is_small(block_bytes)) return kSmallSegment;
  const std::size_t needed = block_bytes < kOwnSegmentRequest ? kLargeSegment : block_bytes;
  return round_up(std::max(needed, reserved_bytes / kGrowthDivisor), kOwnSegmentRounding);
}

/// Of a source that can: how much memory is added where `needed_bytes` more make room.
constexpr std::size_t extent_bytes(std::size_t needed_bytes, bool is_small, std::size_t reserved_bytes) {
  const std::size_t extra = is_small ? 0 : std::min(kMostExtraBytes, reserved_bytes / kExtentDivisor);
  return round_up(std::max(needed_bytes, extra), kLeastExtent);
}

}  // namespace cuttle::memory
