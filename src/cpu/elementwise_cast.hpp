#pragma once
#include <cstdint>
#include <limits>
#include <type_traits>

#include "cuttle/dtype.hpp"

namespace cuttle::cpu {

template <class T> inline constexpr bool kIsSmallFloat = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

/// Towards zero. Values beyond the integer, where C++ and PyTorch define nothing, give what x86 gives: the smallest
/// i32 or i64; u8 is the low byte of the i64.
template <class To, class From> To truncate(From value) {
  using Wide = std::conditional_t<std::is_same_v<To, std::int32_t>, std::int32_t, std::int64_t>;
  constexpr From kLow = static_cast<From>(std::numeric_limits<Wide>::min());
  const bool fits = value >= kLow && value < -kLow;
  // i32 from f64 has values between -2^31 - 1 and -2^31 that truncate to -2^31, which is also the answer otherwise.
  return static_cast<To>(fits ? static_cast<Wide>(value) : std::numeric_limits<Wide>::min());
}

/// One element as PyTorch's `.to(dtype)` converts it: floats round to nearest even, f16 and bf16 by way of f32; floats
/// become integers by truncation; integers wrap around.
template <class To, class From> To cast(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (kIsSmallFloat<From>) {
    return cast<To>(static_cast<float>(value));
  } else if constexpr (kIsSmallFloat<To>) {
    return To(static_cast<float>(value));
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    return truncate<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

}  // namespace cuttle::cpu
