#pragma once
#include <array>
#include <cstdint>

namespace cuttle {

/// Where in the random universe a draw comes from. Equal keys give equal numbers on every device.
struct PhiloxKey {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;  ///< one of kStream* in random.hpp, so that uses do not disturb each other
  std::uint64_t offset = 0;  ///< counter of the first group of four 32-bit words
};

/// Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11): four words for counter
/// (offset, stream) under key seed.
constexpr std::array<std::uint32_t, 4> philox4x32(std::uint64_t seed, std::uint64_t stream, std::uint64_t offset) {
  std::uint32_t k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
  std::uint32_t c0 = static_cast<std::uint32_t>(offset), c1 = static_cast<std::uint32_t>(offset >> 32);
  std::uint32_t c2 = static_cast<std::uint32_t>(stream), c3 = static_cast<std::uint32_t>(stream >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0, p1 = std::uint64_t{0xCD9E8D57u} * c2;
    const std::uint32_t n0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const std::uint32_t n2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<std::uint32_t>(p1);
    c3 = static_cast<std::uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}

/// Uniform in [0,1) from the upper 24 bits: every value is exact in f32.
constexpr float philox_uniform(std::uint32_t word) { return static_cast<float>(word >> 8) * 0x1p-24f; }

}  // namespace cuttle
