// Depthwise convolutions of any filter, stride, padding and dilation: right and simple. The common ones go to the fast
// kernels.
#include <algorithm>

#include "cuda/conv/depthwise.cuh"
#include "cuda/conv/runner.hpp"
#include "cuda/kernels/bias.hpp"

namespace cuttle::cuda {

namespace {

using depthwise::Sizes;

template <class T> __global__ void forward_kernel(const T* x, const T* w, const T* bias, T* y, const Sizes z) {
  const std::int64_t n = std::int64_t{z.n} * z.p * z.q * z.c;
  for (std::int64_t i = grid_index(); i < n; i += grid_step()) {
    const auto c = static_cast<int>(i % z.c), q = static_cast<int>(i / z.c % z.q);
    const auto p = static_cast<int>(i / z.c / z.q % z.p), image = static_cast<int>(i / z.c / z.q / z.p);
    float sum = bias ? static_cast<float>(bias[c]) : 0.0f;
    for (int r = 0; r < z.r; ++r) {
      const int h = p * z.stride_h - z.padding_h + r * z.dilation_h;
      if (h < 0 || h >= z.h) continue;
      for (int s = 0; s < z.s; ++s) {
        const int column = q * z.stride_w - z.padding_w + s * z.dilation_w;
        if (column < 0 || column >= z.w) continue;
        const std::int64_t at = ((std::int64_t{image} * z.h + h) * z.w + column) * z.c + c;
        sum = fmaf(static_cast<float>(x[at]), static_cast<float>(w[(c * z.r + r) * z.s + s]), sum);
      }
    }
    y[i] = T(sum);
  }
}

template <class T> __global__ void backward_data_kernel(const T* dy, const T* w, T* dx, const Sizes z) {
  const std::int64_t n = std::int64_t{z.n} * z.h * z.w * z.c;
  for (std::int64_t i = grid_index(); i < n; i += grid_step()) {
    const auto c = static_cast<int>(i % z.c), column = static_cast<int>(i / z.c % z.w);
    const auto h = static_cast<int>(i / z.c / z.w % z.h), image = static_cast<int>(i / z.c / z.w / z.h);
    float sum = 0;
    for (int r = 0; r < z.r; ++r) {
      const int ph = h + z.padding_h - r * z.dilation_h;
      if (ph < 0 || ph % z.stride_h != 0 || ph / z.stride_h >= z.p) continue;
      for (int s = 0; s < z.s; ++s) {
        const int qw = column + z.padding_w - s * z.dilation_w;
        if (qw < 0 || qw % z.stride_w != 0 || qw / z.stride_w >= z.q) continue;
        const std::int64_t at = ((std::int64_t{image} * z.p + ph / z.stride_h) * z.q + qw / z.stride_w) * z.c + c;
        sum = fmaf(static_cast<float>(dy[at]), static_cast<float>(w[(c * z.r + r) * z.s + s]), sum);
      }
    }
    dx[i] = T(sum);
  }
}

constexpr int kLanes = 32, kRows = 8;

/// parts[blockIdx.y][c * R*S + tap], tap = blockIdx.z, over every gridDim.y * kRows-th output pixel.
template <class T> __global__ void filter_kernel(const T* dy, const T* x, float* parts, const Sizes z) {
  __shared__ float partial[kRows][kLanes];
  const int c = static_cast<int>(blockIdx.x) * kLanes + static_cast<int>(threadIdx.x);
  const int taps = z.r * z.s, tap = static_cast<int>(blockIdx.z);
  const int down = tap / z.s * z.dilation_h - z.padding_h, right = tap % z.s * z.dilation_w - z.padding_w;
  float sum = 0;
  if (c < z.c) {
    const std::int64_t pixels = std::int64_t{z.n} * z.p * z.q, step = std::int64_t{gridDim.y} * kRows;
    for (std::int64_t i = std::int64_t{blockIdx.y} * kRows + threadIdx.y; i < pixels; i += step) {
      const int h = static_cast<int>(i / z.q % z.p) * z.stride_h + down;
      const int column = static_cast<int>(i % z.q) * z.stride_w + right;
      if (h < 0 || h >= z.h || column < 0 || column >= z.w) continue;
      const std::int64_t at = ((i / z.q / z.p * z.h + h) * z.w + column) * z.c + c;
      sum = fmaf(static_cast<float>(x[at]), static_cast<float>(dy[i * z.c + c]), sum);
    }
  }
  partial[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || c >= z.c) return;
  float total = 0;
  for (int row = 0; row < kRows; ++row) total += partial[row][threadIdx.x];
  parts[(std::int64_t{blockIdx.y} * z.c + c) * taps + tap] = total;
}

template <class T>
void backward_filter(const Context& context, const Sizes& z, const T* dy, const T* x, const Tensor& dw,
                     bool accumulate) {
  const int groups = (z.c + kLanes - 1) / kLanes, taps = z.r * z.s;
  const std::int64_t pixels = std::int64_t{z.n} * z.p * z.q;
  const std::int64_t wanted = std::int64_t{context.multiprocessors()} * 16 / (std::int64_t{groups} * taps) + 1;
  const std::int64_t count = std::clamp<std::int64_t>((pixels + kRows - 1) / kRows, 1, wanted);
  const Tensor parts = Tensor::empty({count, dw.numel()}, {DType::f32, dw.device()});
  const dim3 grid(static_cast<unsigned>(groups), static_cast<unsigned>(count), static_cast<unsigned>(taps));
  filter_kernel<<<grid, dim3(kLanes, kRows), 0, context.stream()>>>(dy, x, pointer<float>(parts), z);
  CUTTLE_LAUNCHED("depthwise backward filter");
  sum_parts(pointer<float>(parts), count, dw, accumulate);
}

class DepthwiseRunner final : public ConvRunner {
 public:
  explicit DepthwiseRunner(const ConvKey& key)
      : pass_(key.which()),
        accumulate_(key.accumulate != 0),
        relu_(key.relu != 0),
        z_{int_of(key.x[0]),        int_of(key.x[2]),       int_of(key.x[3]),       int_of(key.x[1]),
           int_of(key.y[2]),        int_of(key.y[3]),       int_of(key.w[2]),       int_of(key.w[3]),
           int_of(key.stride[0]),   int_of(key.stride[1]),  int_of(key.padding[0]), int_of(key.padding[1]),
           int_of(key.dilation[0]), int_of(key.dilation[1])},
        is_fast_(depthwise::is_fast(z_) && static_cast<std::size_t>(key.alignment) >= 4 * size_of(key.type())) {}

  void run(Context& context, const ConvOperands& o) const override {
    dispatch_floating("conv2d", o.a, [&]<class T>(T) { run_as<T>(context, o); });
    add_bias_relu({o.a, o.b, o.out, {}}, relu_);  // the bias is in the kernels
  }
  std::size_t workspace_bytes() const override { return 0; }
  std::string api() const override { return "own"; }
  std::string name() const override { return "depthwise"; }

 private:
  static int int_of(std::int64_t size) { return static_cast<int>(size); }

  template <class T> void run_as(const Context& context, const ConvOperands& o) const {
    const T *a = pointer<T>(o.a), *b = pointer<T>(o.b);
    T* out = pointer<T>(o.out);
    const T* bias = o.bias.defined() ? pointer<T>(o.bias) : nullptr;
    const unsigned blocks = blocks_for(context, o.out.numel());
    switch (pass_) {
      case Pass::forward:
        if (is_fast_) return depthwise::forward_fast(context, z_, a, b, bias, out);
        forward_kernel<<<blocks, kThreads, 0, context.stream()>>>(a, b, bias, out, z_);
        break;
      case Pass::backward_data:
        if (is_fast_) return depthwise::backward_data_fast(context, z_, a, b, out);
        backward_data_kernel<<<blocks, kThreads, 0, context.stream()>>>(a, b, out, z_);
        break;
      case Pass::backward_filter:
        if (is_fast_) return depthwise::backward_filter_fast(context, z_, a, b, o.out, accumulate_);
        return backward_filter(context, z_, a, b, o.out, accumulate_);
    }
    CUTTLE_LAUNCHED("depthwise");
  }

  Pass pass_;
  bool accumulate_, relu_;
  Sizes z_;
  bool is_fast_;
};

}  // namespace

ConvRunnerPtr depthwise_runner(const ConvKey& key) {
  const bool fits = key.order() == Layout::nhwc && key.groups == key.x[1] && key.w[0] == key.x[1] && key.groups > 1;
  // One block a tap: as many as a grid has in z. Sizes and steps must leave room in 32 bits.
  if (!fits || key.w[2] * key.w[3] > 65535) return nullptr;
  constexpr std::int64_t kMax = std::int64_t{1} << 28;
  for (int i = 0; i < 2; ++i) {
    if (key.padding[i] > kMax || key.x[2 + i] > kMax || key.y[2 + i] * key.stride[i] > kMax) return nullptr;
    if (key.w[2 + i] * key.dilation[i] > kMax) return nullptr;
  }
  return std::make_unique<DepthwiseRunner>(key);
}

}  // namespace cuttle::cuda
