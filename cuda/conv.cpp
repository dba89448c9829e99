#include <algorithm>
#include <array>

#include "cuda/context.hpp"
#include "cuda/conv_plan.hpp"
#include "cuda/register.hpp"

namespace cuttle::cuda {

namespace {

void put(std::int64_t (&to)[4], const Tensor& t) { std::copy(t.shape().begin(), t.shape().end(), to); }
void put(std::int64_t (&to)[2], Size2 size) {
  to[0] = size.h;
  to[1] = size.w;
}

/// The largest power of two up to 16 that divides the address: slices of a batch may start anywhere.
std::int64_t alignment_of(const Tensor& t) {
  const auto address = reinterpret_cast<std::uintptr_t>(t.raw_data());
  return static_cast<std::int64_t>(std::min<std::uintptr_t>(16, address & (~address + 1)));
}

ConvKey key_of(graph::Pass pass, const Tensor& x, const Tensor& w, const Tensor& y, const Conv2dOptions& options) {
  ConvKey key{};
  key.device = x.device().index;
  key.pass = static_cast<std::int64_t>(pass);
  key.dtype = static_cast<std::int64_t>(x.dtype());
  key.layout = static_cast<std::int64_t>(x.layout());
  put(key.x, x);
  put(key.w, w);
  put(key.y, y);
  put(key.stride, options.stride);
  put(key.padding, options.padding);
  put(key.dilation, options.dilation);
  key.groups = options.groups;
  key.workspace_limit = -1;
  key.alignment = std::min({alignment_of(x), alignment_of(w), alignment_of(y)});
  return key;
}

void run(Context& context, const ConvKey& key, const std::array<void*, 4>& pointers) {
  const ConvPlan& plan = conv_plan(context, key);
  void* workspace = context.workspace(static_cast<std::size_t>(plan.plan.workspace_bytes()));
  plan.plan.run(context.cudnn(), plan.uids, std::span(pointers).first(plan.uids.size()), workspace);
}

void conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2dOptions& options, const Tensor& y) {
  ConvKey key = key_of(graph::Pass::forward, x, w, y, options);
  key.bias = bias.defined();
  if (bias.defined()) key.alignment = std::min(key.alignment, alignment_of(bias));
  run(context(x), key,
      {x.raw_mutable_data(), w.raw_mutable_data(), y.raw_mutable_data(),
       bias.defined() ? bias.raw_mutable_data() : nullptr});
}

void conv2d_backward_data(const Tensor& dy, const Tensor& w, const Conv2dOptions& options, const Tensor& dx) {
  run(context(dy), key_of(graph::Pass::backward_data, dx, w, dy, options),
      {dy.raw_mutable_data(), w.raw_mutable_data(), dx.raw_mutable_data(), nullptr});
}

void conv2d_backward_filter(const Tensor& dy, const Tensor& x, const Conv2dOptions& options, const Tensor& dw,
                            bool accumulate) {
  // Plans overwrite: a gradient to be added to is computed beside it.
  const Tensor out = accumulate ? Tensor::empty(dw.shape(), dw.options()) : dw;
  run(context(dy), key_of(graph::Pass::backward_filter, x, out, dy, options),
      {dy.raw_mutable_data(), x.raw_mutable_data(), out.raw_mutable_data(), nullptr});
  if (accumulate) kernels(dw).add(dw, out, dw);
}

}  // namespace

void register_conv(Kernels& k) {
  k.conv2d = conv2d;
  k.conv2d_backward_data = conv2d_backward_data;
  k.conv2d_backward_filter = conv2d_backward_filter;
}

}  // namespace cuttle::cuda
