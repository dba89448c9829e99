#include <cmath>
#include <numbers>

#include "cuda/kernels/dispatch.cuh"
#include "cuda/register.hpp"

namespace cuttle::cuda {

namespace {

/// One counter gives four words, so a thread draws for four neighbours.
template <class T> using Four = Chunk<T, 4>;

template <class T, bool kAligned>
__global__ void uniform_kernel(T* out, std::int64_t n, PhiloxKey key, double low, double range) {
  for (std::int64_t group = grid_index(); group < (n + 3) / 4; group += grid_step()) {
    const auto words = philox4x32(key.seed, key.stream, key.offset + static_cast<std::uint64_t>(group));
    Four<T> values;
#pragma unroll
    for (int j = 0; j < 4; ++j) values.at[j] = T(fma(range, static_cast<double>(philox_uniform(words[j])), low));
    store_chunk<kAligned>(values, out, 4 * group, n);
  }
}

template <class T, bool kAligned>
__global__ void normal_kernel(T* out, std::int64_t n, PhiloxKey key, double mean, double stddev) {
  for (std::int64_t group = grid_index(); group < (n + 3) / 4; group += grid_step()) {
    const auto words = philox4x32(key.seed, key.stream, key.offset + static_cast<std::uint64_t>(group));
    Four<T> values;
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
      const double radius = sqrt(-2 * log((words[j] + 1.0) * 0x1p-32));
      const double angle = 2 * std::numbers::pi * (words[j + 1] * 0x1p-32);
      double sine, cosine;
      sincos(angle, &sine, &cosine);
      values.at[j] = T(fma(stddev, radius * cosine, mean));
      values.at[j + 1] = T(fma(stddev, radius * sine, mean));
    }
    store_chunk<kAligned>(values, out, 4 * group, n);
  }
}

/// Calls launch(aligned, blocks) for a thread to every four elements.
template <class T, class Launch> void launch_by_four(const Tensor& out, Launch launch) {
  launch(is_aligned(out.raw_data(), sizeof(Four<T>)), blocks_for(context(out), (out.numel() + 3) / 4));
  CUTTLE_LAUNCHED("random numbers");
}

void uniform(const Tensor& out, PhiloxKey key, double low, double high) {
  dispatch_floating("uniform", out, [&]<class T>(T) {
    launch_by_four<T>(out, [&](bool aligned, unsigned blocks) {
      const auto kernel = aligned ? uniform_kernel<T, true> : uniform_kernel<T, false>;
      kernel<<<blocks, kThreads, 0, context(out).stream()>>>(pointer<T>(out), out.numel(), key, low, high - low);
    });
  });
}

void normal(const Tensor& out, PhiloxKey key, double mean, double stddev) {
  dispatch_floating("normal", out, [&]<class T>(T) {
    launch_by_four<T>(out, [&](bool aligned, unsigned blocks) {
      const auto kernel = aligned ? normal_kernel<T, true> : normal_kernel<T, false>;
      kernel<<<blocks, kThreads, 0, context(out).stream()>>>(pointer<T>(out), out.numel(), key, mean, stddev);
    });
  });
}

/// Two counters serve a pack of eight 16-bit elements, one a pack of four floats. out may be x.
template <class T, bool kAligned>
__global__ void dropout_kernel(const T* x, T* out, std::int64_t n, PhiloxKey key, const std::int64_t* advance,
                               std::uint32_t threshold, float factor) {
  constexpr int kSize = Pack<T>::kSize;
  const std::uint64_t offset = key.offset + (advance ? static_cast<std::uint64_t>(*advance) : 0);
  for (std::int64_t first = grid_index() * kSize; first < n; first += grid_step() * kSize) {
    const Pack<T> from = load_chunk<Pack<T>, kAligned>(x, first, n);
    Pack<T> to;
#pragma unroll
    for (int g = 0; g < kSize; g += 4) {
      const auto words = philox4x32(key.seed, key.stream, offset + static_cast<std::uint64_t>(first + g) / 4);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float scaled = float(from.at[g + j]) * factor;
        to.at[g + j] = T((words[j] >> 8) >= threshold ? scaled : 0.0f);
      }
    }
    store_chunk<kAligned>(to, out, first, n);
  }
}

void dropout(const Tensor& x, double p, PhiloxKey key, const Tensor& advance, const Tensor& out) {
  // philox_uniform(word) >= p without rounding: its value is (word >> 8) / 2^24
  const auto threshold = static_cast<std::uint32_t>(std::ceil(p * 0x1p24));
  // 1/0 would make NaN of the zeroes that p = 1 leaves
  const float factor = p < 1 ? static_cast<float>(1 / (1 - p)) : 0.0f;
  const Context& c = context(x);
  dispatch_floating("dropout", x, [&]<class T>(T) {
    const bool aligned = is_aligned(x.raw_data(), 16) && is_aligned(out.raw_data(), 16);
    const auto kernel = aligned ? dropout_kernel<T, true> : dropout_kernel<T, false>;
    kernel<<<blocks_for(c, (x.numel() + Pack<T>::kSize - 1) / Pack<T>::kSize), kThreads, 0, c.stream()>>>(
        pointer<T>(x), pointer<T>(out), x.numel(), key, advance.defined() ? pointer<std::int64_t>(advance) : nullptr,
        threshold, factor);
  });
  CUTTLE_LAUNCHED("dropout");
}

}  // namespace

void register_random(Kernels& k) {
  k.uniform = uniform;
  k.normal = normal;
  k.dropout = dropout;
}

}  // namespace cuttle::cuda
