#pragma once
#include <fmt/format.h>

#include "cuttle/error.hpp"
#include "cuttle/tensor.hpp"

namespace cuttle::cpu {

/// Calls body(T{}) with float or double, the dtype of `t`, which is `name` of `op`. Throws DtypeError on any other.
template <class Body> void dispatch_real(const char* op, const char* name, const Tensor& t, Body&& body) {
  switch (t.dtype()) {
    case DType::f32: return body(float{});
    case DType::f64: return body(double{});
    default:
      throw DtypeError(fmt::format("{}: {} is {}, and the CPU computes in f32 and f64 only", op, name, t.str()),
                       "convert it with .to(DType::f32), or run with --precision fp32");
  }
}

/// Where a kernel writes its output.
template <class T> T* output(const Tensor& t) { return static_cast<T*>(t.raw_mutable_data()); }

}  // namespace cuttle::cpu
