#include <doctest/doctest.h>

#include "cuda/gpu.hpp"
#include "cuttle/cuttle.hpp"

using namespace cuttle;
using namespace cuttle::testing;

namespace {

/// TF32 keeps 10 bits of the mantissa, so that this loses its last one.
constexpr float kFine = 1.0F + 1.0F / 4096;

bool linear_is_exact(bool bias) {
  const Tensor x = Tensor::full({64, 64}, kFine, {.device = gpu()});
  const Tensor w = Tensor::ones({64, 64}, {.device = gpu()});
  const Tensor b = bias ? Tensor::zeros({64}, {.device = gpu()}) : Tensor();
  return linear(x, w, b).to_vector<float>().front() == 64 * kFine;
}

bool gemm_convolution_is_exact(bool tf32) {
  const ConvSettingsScope scope({.policy = ConvPolicy::gemm, .tf32 = tf32});
  const Tensor x = Tensor::full({4, 64, 8, 8}, kFine, {.device = gpu()});
  const Tensor w = Tensor::ones({64, 64, 1, 1}, {.device = gpu()});
  return conv2d(x, w, {}).to_vector<float>().front() == 64 * kFine;
}

}  // namespace

TEST_CASE("cuda: TF32 of matrix products and of convolutions, also those that are matrix products, are apart") {
  const NoGrad no_grad;
  for (const bool tf32 : {false, true}) {
    const MatmulSettingsScope scope({.tf32 = tf32});
    CHECK(linear_is_exact(false) == !tf32);
    CHECK(linear_is_exact(true) == !tf32);
    for (const bool tf32_conv : {false, true}) CHECK(gemm_convolution_is_exact(tf32_conv) == !tf32_conv);
  }
}
