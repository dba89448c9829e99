#include <cstring>

#include "cpu/dispatch.hpp"
#include "cpu/elementwise.hpp"
#include "cpu/elementwise_cast.hpp"
#include "cpu/layout.hpp"

namespace cuttle::cpu {
namespace {

bool same_order(const Tensor& a, const Tensor& b) { return a.layout() == b.layout() || a.shape().is_layout_free(); }

void copy(const Tensor& in, const Tensor& out) {
  const char* from = static_cast<const char*>(in.raw_data());
  char* to = static_cast<char*>(out.raw_mutable_data());
  parallel_for(static_cast<std::int64_t>(in.nbytes()), 4 * kElementGrain, [=](std::int64_t begin, std::int64_t end) {
    std::memcpy(to + begin, from + begin, static_cast<std::size_t>(end - begin));
  });
}

void convert_layout(const Tensor& in, const Tensor& out) {
  const std::int64_t channels = in.size(1), pixels = in.size(2) * in.size(3);
  const bool from_nhwc = in.layout() == Layout::nhwc;
  transpose(in.raw_data(), out.raw_mutable_data(), size_of(in.dtype()), in.size(0), from_nhwc ? pixels : channels,
            from_nhwc ? channels : pixels);
}

void convert_dtype(const Tensor& in, const Tensor& out) {
  dispatch_any(in, [&]<class From>(From) {
    dispatch_any(out, [&]<class To>(To) {
      const From* from = in.data<From>();
      To* to = writable<To>(out);
      parallel_for(in.numel(), kElementGrain, [=](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i) to[i] = cast<To>(from[i]);
      });
    });
  });
}

}  // namespace

void convert(const Tensor& in, const Tensor& out) {
  const bool same_dtype = in.dtype() == out.dtype();
  if (same_order(in, out)) {
    same_dtype ? copy(in, out) : convert_dtype(in, out);
  } else if (same_dtype) {
    convert_layout(in, out);
  } else {
    const Tensor cast = Tensor::empty(in.shape(), {out.dtype(), in.device(), in.layout()});
    convert_dtype(in, cast);
    convert_layout(cast, out);
  }
}

}  // namespace cuttle::cpu
