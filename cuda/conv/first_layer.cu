// The choice of kernel for filter gradients of few input channels, and the sum over its blocks.
#include <algorithm>

#include "cuda/conv/first_layer.cuh"
#include "cuda/conv/runner.hpp"
#include "cuda/kernels/bias.hpp"

namespace cuttle::cuda {

namespace {

using namespace first_layer;

int int_of(std::int64_t size) { return static_cast<int>(size); }

class FirstLayerRunner final : public ConvRunner {
 public:
  FirstLayerRunner(const Context& context, const ConvKey& key)
      : is_f32_(key.type() == DType::f32),
        accumulate_(key.accumulate != 0),
        z_{int_of(key.x[2]),
           int_of(key.x[3]),
           int_of(key.x[1]),
           int_of(key.w[0]),
           int_of(key.y[2]),
           int_of(key.y[3]),
           int_of(key.w[2]),
           int_of(key.w[3]),
           int_of(key.stride[0]),
           int_of(key.stride[1]),
           int_of(key.padding[0]),
           int_of(key.padding[1]),
           int_of(key.dilation[0]),
           int_of(key.dilation[1]),
           int_of(key.w[1] * key.w[2] * key.w[3]),
           false,
           0,
           0,
           {},
           {}} {
    const Shape shape = is_f32_ ? fma_shape(z_) : mma_shape(z_);
    const std::size_t vector = static_cast<std::size_t>(shape.lane_channels) * size_of(key.type());
    z_.is_vectored = z_.k % shape.lane_channels == 0 && static_cast<std::size_t>(key.alignment) >= vector;
    // Chunks of one length: 28 pixels are twice 14.
    std::int64_t chunks = (key.y[3] + shape.most_pixels - 1) / shape.most_pixels;
    const std::int64_t chunk = (key.y[3] + chunks - 1) / chunks;
    chunks = (key.y[3] + chunk - 1) / chunk;
    z_.chunk = int_of(chunk);
    z_.items = static_cast<unsigned>(key.x[0] * key.y[2] * chunks);
    z_.chunks = Divider(chunks);
    z_.rows = Divider(key.y[2]);
    blocks_.y = static_cast<unsigned>((z_.k + shape.block_channels - 1) / shape.block_channels);
    const unsigned most = static_cast<unsigned>(context.multiprocessors()) * kBlocksPerMultiprocessor / blocks_.y;
    blocks_.x = std::max(1u, std::min(most, (z_.items + kWarps - 1) / kWarps));
  }

  void run(Context& context, const ConvOperands& o) const override {
    const Tensor scratch = scratch_bytes(context.index(), workspace_bytes());
    const auto parts = static_cast<float*>(scratch.raw_mutable_data());
    dispatch_floating("conv2d backward", o.a, [&]<class T>(T) {
      if constexpr (std::is_same_v<T, float>) {
        sum_by_fma(context, z_, blocks_, pointer<T>(o.a), pointer<T>(o.b), parts);
      } else {
        sum_by_mma(context, z_, blocks_, pointer<T>(o.a), pointer<T>(o.b), parts);
      }
    });
    sum_parts(parts, blocks_.x, o.out, accumulate_);
  }
  std::size_t workspace_bytes() const override {
    return std::size_t{blocks_.x} * static_cast<std::size_t>(z_.k) * static_cast<std::size_t>(z_.taps) * sizeof(float);
  }
  std::string api() const override { return "own"; }
  std::string name() const override { return "first_layer"; }

 private:
  bool is_f32_, accumulate_;
  Sizes z_;
  dim3 blocks_;
};

}  // namespace

ConvRunnerPtr first_layer_runner(const Context& context, const ConvKey& key) {
  if (key.which() != Pass::backward_filter || key.order() != Layout::nhwc || key.groups != 1) return nullptr;
  if (key.w[1] > kMaxChannels || key.w[1] * key.w[2] * key.w[3] > kMaxTaps) return nullptr;
  // Sizes and steps must leave room in 32 bits.
  constexpr std::int64_t kMax = std::int64_t{1} << 28;
  for (int i = 0; i < 2; ++i) {
    if (key.padding[i] > kMax || key.x[2 + i] > kMax || key.y[2 + i] * key.stride[i] > kMax) return nullptr;
    if (key.w[2 + i] * key.dilation[i] > kMax) return nullptr;
  }
  const auto image = [](const std::int64_t(&s)[4]) { return s[1] * s[2] * s[3]; };
  if (std::max(image(key.x), image(key.y)) >= std::int64_t{1} << 30) return nullptr;
  if (key.w[0] > (1 << 20) || key.x[0] * key.y[2] * key.y[3] >= std::int64_t{1} << 31) return nullptr;
  auto runner = std::make_unique<FirstLayerRunner>(context, key);
  return key.fits(runner->workspace_bytes()) ? std::move(runner) : nullptr;
}

}  // namespace cuttle::cuda
