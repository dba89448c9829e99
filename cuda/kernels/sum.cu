#include "cuda/kernels/elementwise.hpp"
#include "cuda/kernels/reduce.cuh"

namespace cuttle::cuda {

namespace {

__device__ unsigned blocks_arrived;  // of the launch in progress; see finish_grid_sum

/// Adds in double, as the CPU does: of 2^24 ones f32 would lose all that follow.
struct Values {
  using Total = double;
  __device__ double operator()(float x) const { return x; }
};

struct NonFinite {
  using Total = long long;
  __device__ long long operator()(float x) const { return isfinite(x) ? 0 : 1; }
};

template <class T, bool kAligned, class Term, class Out>
__global__ void sum_kernel(const T* x, std::int64_t n, typename Term::Total* partials, Out* out) {
  constexpr int kUnroll = 4, kSize = Pack<T>::kSize;
  using Total = typename Term::Total;
  const std::int64_t row = std::int64_t{blockDim.x} * kSize;
  Total total = 0;
  for (std::int64_t first = blockIdx.x * row * kUnroll + threadIdx.x * kSize; first < n;
       first += gridDim.x * row * kUnroll) {
    Pack<T> from[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) from[u] = load_chunk<Pack<T>, kAligned>(x, first + u * row, n);
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int j = 0; j < kSize; ++j) total += Term{}(float(from[u].at[j]));  // what is missing at the end is 0
    }
  }
  finish_grid_sum(block_sum(total), partials, &blocks_arrived, [out](Total all) { *out = Out(all); });
}

template <class Term, class T, class Out> void sum_into(const Tensor& x, Out* out) {
  const Context& c = context(x);
  const T* from = pointer<T>(x);
  const std::int64_t work = 4 * Pack<T>::kSize;
  const unsigned blocks = blocks_for(c, (x.numel() + work - 1) / work);
  const Tensor partials =
      Tensor::empty({std::int64_t{blocks} * std::int64_t{sizeof(typename Term::Total)}}, {DType::u8, x.device()});
  const auto kernel = is_aligned(from, 16) ? sum_kernel<T, true, Term, Out> : sum_kernel<T, false, Term, Out>;
  kernel<<<blocks, kThreads, 0, c.stream()>>>(from, x.numel(), pointer<typename Term::Total>(partials), out);
  CUTTLE_LAUNCHED("sum");
}

void sum(const Tensor& x, const Tensor& out) {
  dispatch_floating("sum", x, [&]<class T>(T) { sum_into<Values, T>(x, pointer<T>(out)); });
}

void non_finite_count(const Tensor& x, const Tensor& out) {
  dispatch_floating("non_finite_count", x, [&]<class T>(T) { sum_into<NonFinite, T>(x, pointer<std::int64_t>(out)); });
}

}  // namespace

void register_sums(Kernels& k) {
  k.sum = sum;
  k.non_finite_count = non_finite_count;
}

}  // namespace cuttle::cuda
