#include <algorithm>
#include <cstdint>

#include "cuda/conv/plan.hpp"
#include "cuda/kernels/bias.hpp"
#include "cuda/register.hpp"

namespace cuttle::cuda {

namespace {

/// cuDNN and 32-bit indices take fewer elements than this in one tensor.
constexpr std::int64_t kMaxElements = std::int64_t{1} << 31;

Tensor rows(const Tensor& t, std::int64_t begin, std::int64_t end) {
  return end - begin == t.size(0) ? t : t.detach().slice(begin, end);
}

/// Calls work(begin, end) over as few ranges of images as keep the larger of the tensors below kMaxElements. A single
/// image beyond it is left whole: the plans refuse what they cannot do.
template <class Work> void for_batches(const Tensor& x, const Tensor& y, Work work) {
  const std::int64_t images = x.size(0), image = std::max(x.numel(), y.numel()) / images;
  const std::int64_t most = std::max<std::int64_t>(1, (kMaxElements - 1) / image);
  for (std::int64_t begin = 0; begin < images; begin += most) work(begin, std::min(images, begin + most));
}

void run(Pass pass, const ConvOperands& operands, const Conv2dOptions& options, bool accumulate, bool relu = false) {
  const ConvKey key = conv_key(conv_settings(), pass, operands, options, accumulate, relu);
  const std::string used = run_convolution(key, operands, options.choice.get());
  if (options.choice) options.choice->set_used(pass, used);
}

void conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2dOptions& options, bool relu,
            const Tensor& y) {
  for_batches(x, y, [&](std::int64_t begin, std::int64_t end) {
    run(Pass::forward, {rows(x, begin, end), w, rows(y, begin, end), bias}, options, false, relu);
  });
}

void conv2d_backward_data(const Tensor& dy, const Tensor& w, const Conv2dOptions& options, const Tensor& dx) {
  for_batches(dx, dy, [&](std::int64_t begin, std::int64_t end) {
    run(Pass::backward_data, {rows(dy, begin, end), w, rows(dx, begin, end), {}}, options, false);
  });
}

void conv2d_backward_filter(const Tensor& dy, const Tensor& x, const Conv2dOptions& options, const Tensor& dw,
                            bool accumulate) {
  for_batches(x, dy, [&](std::int64_t begin, std::int64_t end) {
    run(Pass::backward_filter, {rows(dy, begin, end), rows(x, begin, end), dw, {}}, options, accumulate || begin > 0);
  });
}

}  // namespace

void register_conv(Kernels& k) {
  register_bias(k);
  k.conv2d = conv2d;
  k.conv2d_backward_data = conv2d_backward_data;
  k.conv2d_backward_filter = conv2d_backward_filter;
}

}  // namespace cuttle::cuda
