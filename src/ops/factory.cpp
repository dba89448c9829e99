#include <fmt/format.h>

#include <cstring>

#include "autograd/node.hpp"
#include "kernels.hpp"

namespace cuttle {

Tensor Tensor::full(const Shape& shape, double value, TensorOptions options) {
  Tensor t = empty(shape, options);
  if (t.numel() > 0) kernels(t).fill(t, value);
  return t;
}

Tensor Tensor::zeros(const Shape& shape, TensorOptions options) { return full(shape, 0, options); }
Tensor Tensor::ones(const Shape& shape, TensorOptions options) { return full(shape, 1, options); }
Tensor Tensor::scalar(double value, TensorOptions options) { return full({}, value, options); }

Tensor Tensor::rand(const Shape& shape, TensorOptions options) {
  Tensor t = empty(shape, options);
  if (t.numel() > 0) kernels(t).uniform(t, init_generator().reserve(t.numel()), 0, 1);
  return t;
}

Tensor Tensor::randn(const Shape& shape, TensorOptions options) {
  Tensor t = empty(shape, options);
  if (t.numel() > 0) kernels(t).normal(t, init_generator().reserve(t.numel()), 0, 1);
  return t;
}

template <class T> Tensor Tensor::from(const std::vector<T>& values, const Shape& shape, TensorOptions options) {
  if (static_cast<std::int64_t>(values.size()) != shape.numel()) {
    throw ShapeError(
        fmt::format("Tensor::from: {} values for a shape {} of {}", values.size(), shape.str(), shape.numel()));
  }
  Tensor t = empty(shape, {dtype_of<T>, kCpu, Layout::nchw});
  if (!values.empty()) std::memcpy(t.raw_mutable_data(), values.data(), t.nbytes());
  return t.to(options.layout).to(options.device);
}

namespace {

template <class T, class From> void convert_values(const Tensor& t, std::vector<T>& out) {
  const From* in = t.data<From>();
  for (std::size_t i = 0; i < out.size(); ++i) {
    if constexpr (std::is_same_v<From, Half> || std::is_same_v<From, BFloat16>) {
      out[i] = static_cast<T>(static_cast<float>(in[i]));
    } else {
      out[i] = static_cast<T>(in[i]);
    }
  }
}

}  // namespace

template <class T> std::vector<T> Tensor::to_vector() const {
  NoGrad no_grad;
  const Tensor t = to(kCpu).to(Layout::nchw);
  std::vector<T> out(static_cast<std::size_t>(numel()));
  switch (dtype()) {
    case DType::f32: convert_values<T, float>(t, out); break;
    case DType::f64: convert_values<T, double>(t, out); break;
    case DType::f16: convert_values<T, Half>(t, out); break;
    case DType::bf16: convert_values<T, BFloat16>(t, out); break;
    case DType::i32: convert_values<T, std::int32_t>(t, out); break;
    case DType::i64: convert_values<T, std::int64_t>(t, out); break;
    case DType::u8: convert_values<T, std::uint8_t>(t, out); break;
  }
  return out;
}

template <class T> T Tensor::item() const {
  if (numel() != 1) throw ShapeError("item: " + str() + " does not have exactly one element");
  return to_vector<T>()[0];
}

#define CUTTLE_INSTANTIATE(T)                                                          \
  template Tensor Tensor::from<T>(const std::vector<T>&, const Shape&, TensorOptions); \
  template std::vector<T> Tensor::to_vector<T>() const;                                \
  template T Tensor::item<T>() const;
CUTTLE_INSTANTIATE(float)
CUTTLE_INSTANTIATE(double)
CUTTLE_INSTANTIATE(std::int32_t)
CUTTLE_INSTANTIATE(std::int64_t)
CUTTLE_INSTANTIATE(std::uint8_t)
#undef CUTTLE_INSTANTIATE
template Tensor Tensor::from<Half>(const std::vector<Half>&, const Shape&, TensorOptions);
template Tensor Tensor::from<BFloat16>(const std::vector<BFloat16>&, const Shape&, TensorOptions);

}  // namespace cuttle
