#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

#include "cuttle/memory.hpp"
#include "cuttle/tensor.hpp"

namespace cuttle {

/// One allocation, shared by a tensor and its views.
class Storage {
 public:
  Storage(std::size_t bytes, Device device);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }

  std::uint32_t version() const { return version_; }
  const char* changed_by() const { return changed_by_; }  ///< the op of the latest change
  void bump(const char* op) {
    ++version_;
    changed_by_ = op;
  }

 private:
  memory::Block* block_ = nullptr;
  void* data_ = nullptr;
  std::size_t bytes_;
  Device device_;
  std::uint32_t version_ = 0;
  const char* changed_by_ = "";
};

/// What a view is a view of; decides whether an in-place change through it can be recorded.
enum class ViewOf : std::uint8_t { nothing, constant, leaf, history };

struct TensorImpl {
  std::shared_ptr<Storage> storage;
  std::size_t offset = 0;  ///< bytes
  Shape shape;
  DType dtype = DType::f32;
  Layout layout = Layout::nhwc;

  bool requires_grad = false;
  ViewOf view_of = ViewOf::nothing;
  /// Version at which grad_fn describes the contents: a later one means that another handle changed them.
  std::uint32_t history_version = 0;
  std::shared_ptr<autograd::Node> grad_fn;
  Tensor grad;

  /// In f16 or bf16, equal to this f32 tensor as it was at copy_version; see autograd/copy.hpp.
  Tensor copy;
  std::uint32_t copy_version = 0;
};

/// A tensor over existing storage, without history.
Tensor make_tensor(std::shared_ptr<Storage> storage, std::size_t offset, const Shape& shape, DType dtype,
                   Layout layout);

/// Whether nobody else can see this array, so that it may be overwritten.
bool is_exclusive(const Tensor& t);

/// Whether a leaf may hold a gradient of this dtype: its own, or 16 bits for f32, as low-precision ops deliver them.
bool can_be_gradient(DType gradient, DType leaf);

/// Whether the order in memory is the logical order.
bool is_row_major(const Tensor& t);

}  // namespace cuttle
