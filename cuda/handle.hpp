#pragma once
#include <memory>
#include <type_traits>

namespace cuttle::cuda {

/// Move-only owner of a library's opaque pointer.
template <class Pointer, auto Destroy>
struct HandleDeleter {
  using pointer = Pointer;
  void operator()(Pointer p) const noexcept { Destroy(p); }  // nothing useful can be done about a failing destroy
};
template <class Pointer, auto Destroy>
using Handle = std::unique_ptr<std::remove_pointer_t<Pointer>, HandleDeleter<Pointer, Destroy>>;

}  // namespace cuttle::cuda
