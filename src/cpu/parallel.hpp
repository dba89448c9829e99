#pragma once
#include <cstdint>
#include <type_traits>

namespace cuttle::cpu {

namespace detail {
void parallel_for(std::int64_t n, std::int64_t grain, void (*body)(void*, std::int64_t, std::int64_t), void* context);
}

/// Calls body(begin, end) over [0, n) from all threads, in pieces of at least `grain`; returns when all are done.
/// Runs in place when there is one piece or when called from inside a parallel region. Rethrows the first exception.
template <class Body> void parallel_for(std::int64_t n, std::int64_t grain, Body&& body) {
  using Plain = std::remove_reference_t<Body>;
  detail::parallel_for(
      n, grain,
      [](void* context, std::int64_t begin, std::int64_t end) { (*static_cast<Plain*>(context))(begin, end); },
      const_cast<void*>(static_cast<const void*>(&body)));
}

}  // namespace cuttle::cpu
