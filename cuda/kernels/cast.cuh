#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <limits>
#include <type_traits>

namespace cuttle::cuda {

template <class T> inline constexpr bool kIs16Bit = std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>;

/// Towards zero. Out of range, where PyTorch defines nothing, the same as on the CPU: the smallest i32 or i64; u8 is
/// the low byte of the i64. (The hardware's conversion would saturate.)
template <class To, class From> __device__ To truncate(From value) {
  using Wide = std::conditional_t<std::is_same_v<To, std::int32_t>, std::int32_t, std::int64_t>;
  constexpr From kLow = static_cast<From>(std::numeric_limits<Wide>::min());
  const bool fits = value >= kLow && value < -kLow;
  return static_cast<To>(fits ? static_cast<Wide>(value) : std::numeric_limits<Wide>::min());
}

/// One element as PyTorch's `.to(dtype)` converts it: floats round to nearest even, f16 and bf16 by way of f32; floats
/// become integers by truncation; integers wrap around.
template <class To, class From> __device__ To cast(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (kIs16Bit<From>) {
    return cast<To>(static_cast<float>(value));
  } else if constexpr (kIs16Bit<To>) {
    return To(static_cast<float>(value));
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    return truncate<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

}  // namespace cuttle::cuda
