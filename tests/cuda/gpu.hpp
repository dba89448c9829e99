#pragma once
#include <cstdint>
#include <vector>

#include "cuttle/tensor.hpp"
#include "kernels.hpp"

/// For test cases named "cuda: ...", which run only where there is a GPU (tests/main.cpp).
namespace cuttle::testing {

inline Device gpu() { return {DeviceKind::cuda, best_device().index}; }
inline Backend& gpu_backend() { return backend(DeviceKind::cuda); }

/// Bytes that differ from place to place and from seed to seed.
inline std::vector<std::uint8_t> some_bytes(std::size_t count, std::uint32_t seed) {
  std::vector<std::uint8_t> bytes(count);
  std::uint32_t state = seed * 2654435761u + 1;
  for (std::uint8_t& byte : bytes) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<std::uint8_t>(state >> 24);
  }
  return bytes;
}

inline Tensor bytes_on(Device device, std::size_t count) {
  return Tensor::empty({static_cast<std::int64_t>(count)}, {.dtype = DType::u8, .device = device});
}
inline void to_gpu(const Tensor& to, const std::vector<std::uint8_t>& from) {
  gpu_backend().copy(to.raw_mutable_data(), to.device(), from.data(), kCpu, from.size());
}
inline std::vector<std::uint8_t> from_gpu(const Tensor& from) {
  std::vector<std::uint8_t> bytes(from.nbytes());
  gpu_backend().copy(bytes.data(), kCpu, from.raw_data(), from.device(), bytes.size());
  return bytes;
}

/// Some milliseconds of queued work, so that what follows meets a busy device.
inline void keep_busy(Device device) {
  Tensor t = Tensor::empty({64, 1 << 20}, {.device = device});
  for (int i = 0; i < 40; ++i) t.fill_(i);
}

inline bool all_equal(const Tensor& t, float value) {
  for (const float found : t.to_vector<float>()) {
    if (found != value) return false;
  }
  return true;
}

}  // namespace cuttle::testing
