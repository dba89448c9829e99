#pragma once
#include <cstdint>

#include "cuttle/philox.hpp"

namespace cuttle {

inline constexpr std::uint64_t kStreamOps = 0;      ///< dropout
inline constexpr std::uint64_t kStreamInit = 1;     ///< parameters and randn/rand
inline constexpr std::uint64_t kStreamShuffle = 2;  ///< order of samples: offset counts (epoch, position)
inline constexpr std::uint64_t kStreamAugment = 3;  ///< augmentation: offset counts (epoch, index)
inline constexpr std::uint64_t kStreamSynthetic = 4;

/// A position in the random universe; hands out disjoint ranges. Its whole state is three numbers, so it is saved
/// in checkpoints and replayed by recomputation.
class Generator {
 public:
  explicit Generator(std::uint64_t seed = 0, std::uint64_t stream = 0) : key_{seed, stream, 0} {}
  /// Reserves enough words for n elements and returns the key of the first.
  PhiloxKey reserve(std::int64_t elements);
  PhiloxKey state() const { return key_; }
  void set_state(PhiloxKey key) { key_ = key; }

 private:
  PhiloxKey key_;
};

/// Seeds both default generators of the calling thread and rewinds them.
void manual_seed(std::uint64_t seed);
Generator& default_generator();  ///< of dropout (kStreamOps)
Generator& init_generator();     ///< of parameters, randn and rand (kStreamInit)

}  // namespace cuttle
