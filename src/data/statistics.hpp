#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "cuttle/data.hpp"

namespace cuttle::data {

/// Exact sums over the pixels of each channel.
struct PixelSums {
  std::uint64_t count = 0;                 ///< pixels of one channel
  std::vector<std::uint64_t> sum, square;  ///< of each channel
};
PixelSums sum_pixels(std::span<const std::uint8_t> pixels, std::int64_t channels);

/// Sets mean and stddev of each channel, for values in [0,1]. A channel that is constant gets stddev 1.
void set_statistics(ImageSet& set, const PixelSums& sums);

}  // namespace cuttle::data
