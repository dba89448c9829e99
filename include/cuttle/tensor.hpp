#pragma once
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "cuttle/device.hpp"
#include "cuttle/dtype.hpp"
#include "cuttle/random.hpp"
#include "cuttle/shape.hpp"

namespace cuttle {

class Storage;
struct TensorImpl;

namespace autograd {
struct Node;
}

struct TensorOptions {
  DType dtype = DType::f32;
  Device device = kCpu;
  Layout layout = Layout::nhwc;  ///< of 4-D tensors; other ranks ignore it
};

/// A handle to a dense array: copies share the array. Elements lie without gaps in the order of `layout()`.
/// A default-constructed tensor is undefined: only `defined()` may be asked of it.
class Tensor {
 public:
  Tensor() = default;

  static Tensor empty(const Shape& shape, TensorOptions options = {});  ///< contents undefined
  static Tensor zeros(const Shape& shape, TensorOptions options = {});
  static Tensor ones(const Shape& shape, TensorOptions options = {});
  static Tensor full(const Shape& shape, double value, TensorOptions options = {});
  /// Uniform in [0,1) / standard normal, from init_generator().
  static Tensor rand(const Shape& shape, TensorOptions options = {});
  static Tensor randn(const Shape& shape, TensorOptions options = {});
  /// From values in logical order (row-major N,C,H,W whatever the layout). The tensor has dtype_of<T>.
  template <class T> static Tensor from(const std::vector<T>& values, const Shape& shape, TensorOptions options = {});
  static Tensor scalar(double value, TensorOptions options = {});

  bool defined() const { return impl_ != nullptr; }
  const Shape& shape() const;
  std::int64_t size(int dim) const;  ///< dim counts from the end if negative; ShapeError if there is none
  int rank() const { return shape().rank(); }
  std::int64_t numel() const;
  std::size_t nbytes() const;
  DType dtype() const;
  Layout layout() const;
  Device device() const;
  TensorOptions options() const;  ///< dtype, device and layout, to make another like it
  std::string str() const;        ///< "f16[256,64,56,56] NHWC cuda:0"

  /// First element in memory order; throws DtypeError unless T is the tensor's dtype. Device memory on CUDA.
  template <class T> const T* data() const;
  /// The same for writing: counts as a change of the tensor, as an in-place op does.
  template <class T> T* mutable_data();
  const void* raw_data() const;
  void* raw_mutable_data() const;  ///< for kernels: does not count as a change

  template <class T> T item() const;                    ///< the only element, converted; waits for the device
  template <class T> std::vector<T> to_vector() const;  ///< in logical order, converted; waits for the device

  // --- Views: share the storage where the memory order allows it.
  /// Same elements in logical order. Copies only where NHWC order differs from logical order.
  Tensor reshape(const Shape& shape) const;
  Tensor reshape(std::initializer_list<std::int64_t> sizes) const;  ///< one size may be -1: what remains
  /// Rows [begin, end) of the first dimension; always a view.
  Tensor slice(std::int64_t begin, std::int64_t end) const;
  /// The same array without history; shares storage and version.
  Tensor detach() const;

  // --- Copies, differentiable. They return the tensor itself where nothing changes.
  Tensor to(Device device) const;
  Tensor to(DType dtype) const;
  Tensor to(Layout layout) const;
  Tensor clone() const;

  // --- In place; count as a change. Not recorded: they throw AutogradError on a tensor that needs a gradient unless
  //     under NoGrad.
  Tensor& copy_(const Tensor& source);  ///< same shape; converts dtype, layout and device
  Tensor& fill_(double value);
  Tensor& zero_() { return fill_(0); }

  // --- Autograd.
  bool requires_grad() const;  ///< a leaf asked for it, or some input of its op did
  bool is_leaf() const;
  Tensor& requires_grad_(bool value = true);  ///< leaves of floating dtype only
  /// Undefined until a backward reached this leaf. That of an f32 leaf is f16 or bf16 where an op on such activations
  /// delivered it, and f32 once a second one was added to it.
  Tensor grad() const;
  void set_grad(const Tensor& gradient);  ///< of the leaf's dtype, or f16 or bf16 for f32; undefined clears it
  /// Gradients of this scalar are added to the leaves it came from. Throws AutogradError if it is not a scalar, needs
  /// no gradient or was consumed by an earlier backward, or if a saved tensor was changed in place.
  void backward() const;
  void backward(const Tensor& gradient) const;  ///< from any shape, with the gradient of the root given

  // --- For ops and backends.
  explicit Tensor(std::shared_ptr<TensorImpl> impl) : impl_(std::move(impl)) {}
  TensorImpl* impl() const { return impl_.get(); }
  const std::shared_ptr<TensorImpl>& shared() const { return impl_; }
  /// Replaces array, dtype and device of this very tensor, so that every handle sees it (Module::to). Drops the
  /// gradient.
  void set_data(const Tensor& source);
  std::uint32_t version() const;  ///< counts in-place changes of the storage

 private:
  std::shared_ptr<TensorImpl> impl_;
};

}  // namespace cuttle
