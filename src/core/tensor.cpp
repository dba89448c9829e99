#include "cuttle/tensor.hpp"

#include <fmt/format.h>

#include "core/capture.hpp"
#include "core/tensor_impl.hpp"
#include "cuttle/error.hpp"

namespace cuttle {

Storage::Storage(std::size_t bytes, Device device) : bytes_(bytes), device_(device) {
  if (bytes == 0) return;
  block_ = memory::allocator(device).allocate(bytes, 0, AllocationScope::pool_of(device));
  data_ = memory::CachingAllocator::pointer(block_);
}

Storage::~Storage() {
  if (block_) memory::allocator(device_).free(block_);
}

Tensor make_tensor(std::shared_ptr<Storage> storage, std::size_t offset, const Shape& shape, DType dtype,
                   Layout layout) {
  auto impl = std::make_shared<TensorImpl>();
  impl->storage = std::move(storage);
  impl->offset = offset;
  impl->shape = shape;
  impl->dtype = dtype;
  impl->layout = layout;
  return Tensor(std::move(impl));
}

bool is_exclusive(const Tensor& t) { return t.shared().use_count() == 1 && t.impl()->storage.use_count() == 1; }

bool can_be_gradient(DType gradient, DType leaf) {
  return gradient == leaf || (leaf == DType::f32 && (gradient == DType::f16 || gradient == DType::bf16));
}

bool is_row_major(const Tensor& t) { return t.layout() == Layout::nchw || t.shape().is_layout_free(); }

namespace {

const TensorImpl& checked(const std::shared_ptr<TensorImpl>& impl) {
  if (!impl) throw Error("an undefined tensor was used", "default-constructed tensors hold nothing; assign one first");
  return *impl;
}

}  // namespace

Tensor Tensor::empty(const Shape& shape, TensorOptions options) {
  const std::int64_t n = shape.numel();
  std::int64_t bytes = 0;
  if (__builtin_mul_overflow(n, static_cast<std::int64_t>(size_of(options.dtype)), &bytes)) {
    throw ShapeError(fmt::format("a tensor {}{} does not fit 63 bits of bytes", name_of(options.dtype), shape.str()));
  }
  return make_tensor(std::make_shared<Storage>(static_cast<std::size_t>(bytes), options.device), 0, shape,
                     options.dtype, options.layout);
}

const Shape& Tensor::shape() const { return checked(impl_).shape; }
std::int64_t Tensor::size(int dim) const {
  const Shape& s = shape();
  if (dim < -s.rank() || dim >= s.rank()) throw ShapeError(fmt::format("size: {} has no dimension {}", str(), dim));
  return s[dim];
}

std::int64_t Tensor::numel() const { return shape().numel(); }
std::size_t Tensor::nbytes() const { return static_cast<std::size_t>(numel()) * size_of(dtype()); }
DType Tensor::dtype() const { return checked(impl_).dtype; }
Layout Tensor::layout() const { return checked(impl_).layout; }
Device Tensor::device() const { return checked(impl_).storage->device(); }
TensorOptions Tensor::options() const { return {dtype(), device(), layout()}; }
std::uint32_t Tensor::version() const { return checked(impl_).storage->version(); }

std::string Tensor::str() const {
  if (!impl_) return "undefined";
  return fmt::format("{}{}{}{} {}", name_of(dtype()), shape().str(), rank() == 4 ? " " : "",
                     rank() == 4 ? name_of(layout()) : "", device().str());
}

const void* Tensor::raw_data() const {
  const TensorImpl& t = checked(impl_);
  return static_cast<const char*>(t.storage->data()) + t.offset;
}

void* Tensor::raw_mutable_data() const { return const_cast<void*>(raw_data()); }

template <class T> const T* Tensor::data() const {
  if (dtype() != dtype_of<T>) {
    throw DtypeError(fmt::format("data<{}>() of a tensor {}", name_of(dtype_of<T>), str()));
  }
  return static_cast<const T*>(raw_data());
}

template <class T> T* Tensor::mutable_data() {
  T* pointer = const_cast<T*>(data<T>());
  impl_->storage->bump("mutable_data");
  return pointer;
}

#define CUTTLE_INSTANTIATE(T)                \
  template const T* Tensor::data<T>() const; \
  template T* Tensor::mutable_data<T>();
CUTTLE_INSTANTIATE(float)
CUTTLE_INSTANTIATE(double)
CUTTLE_INSTANTIATE(Half)
CUTTLE_INSTANTIATE(BFloat16)
CUTTLE_INSTANTIATE(std::int32_t)
CUTTLE_INSTANTIATE(std::int64_t)
CUTTLE_INSTANTIATE(std::uint8_t)
#undef CUTTLE_INSTANTIATE

bool Tensor::is_leaf() const { return checked(impl_).grad_fn == nullptr; }
bool Tensor::requires_grad() const { return checked(impl_).requires_grad; }
Tensor Tensor::grad() const { return checked(impl_).grad; }

Tensor& Tensor::requires_grad_(bool value) {
  checked(impl_);
  if (!is_leaf())
    throw AutogradError("requires_grad_: only leaves can be asked for a gradient; " + str() + " is a result");
  if (value && !is_floating(dtype())) throw DtypeError("requires_grad_: " + str() + " is not of a floating dtype");
  impl_->requires_grad = value;
  return *this;
}

void Tensor::set_grad(const Tensor& gradient) {
  checked(impl_);
  if (gradient.defined() && (gradient.shape() != shape() || gradient.device() != device())) {
    throw ShapeError("set_grad: gradient " + gradient.str() + " of a tensor " + str());
  }
  if (gradient.defined() && !can_be_gradient(gradient.dtype(), dtype())) {
    throw DtypeError("set_grad: gradient " + gradient.str() + " of a tensor " + str(), "convert it with .to(dtype)");
  }
  // backward adds to it element by element in memory order.
  impl_->grad = gradient.defined() ? gradient.detach().to(layout()) : gradient;
}

void Tensor::set_data(const Tensor& source) {
  checked(impl_);
  if (!is_leaf()) throw AutogradError("set_data: " + str() + " is a result, not a leaf");
  if (source.shape() != shape()) throw ShapeError("set_data: " + str() + " cannot become " + source.str());
  impl_->storage = source.impl()->storage;
  impl_->offset = source.impl()->offset;
  impl_->dtype = source.dtype();
  impl_->layout = source.layout();
  impl_->grad = {};
  impl_->copy = {};
}

Tensor Tensor::detach() const {
  const TensorImpl& t = checked(impl_);
  Tensor result = make_tensor(t.storage, t.offset, t.shape, t.dtype, t.layout);
  result.impl_->view_of = t.grad_fn ? ViewOf::history : t.requires_grad ? ViewOf::leaf : ViewOf::constant;
  return result;
}

}  // namespace cuttle
