#pragma once
#include <cstdint>
#include <string>

#include "cuttle/error.hpp"
#include "cuttle/tensor.hpp"

namespace cuttle::cpu {

/// Calls body(T{}) with the type the CPU computes in for this tensor: float or double. Other dtypes are only stored
/// and converted, so they throw DtypeError.
template <class Body> void dispatch_floating(const char* op, const Tensor& t, Body&& body) {
  switch (t.dtype()) {
    case DType::f32: return body(float{});
    case DType::f64: return body(double{});
    default:
      throw DtypeError(std::string(op) + ": the CPU computes in f32 and f64, and got " + t.str(),
                       "convert the tensor with .to(DType::f32), or run on a GPU");
  }
}

/// Calls body(T{}) with the element type of any tensor.
template <class Body> void dispatch_any(const Tensor& t, Body&& body) {
  switch (t.dtype()) {
    case DType::f32: return body(float{});
    case DType::f64: return body(double{});
    case DType::f16: return body(Half{});
    case DType::bf16: return body(BFloat16{});
    case DType::i32: return body(std::int32_t{});
    case DType::i64: return body(std::int64_t{});
    case DType::u8: return body(std::uint8_t{});
  }
}

/// First element of a kernel's output. Throws DtypeError unless T is the tensor's dtype.
template <class T> T* writable(const Tensor& t) { return const_cast<T*>(t.data<T>()); }

}  // namespace cuttle::cpu
