#pragma once
#include <initializer_list>
#include <string>
#include <string_view>

#include "cuttle/tensor.hpp"

/// Argument checks shared by the ops. All throw with the op's name and every tensor's description.
namespace cuttle::check {

void rank(const char* op, std::string_view what, const Tensor& t, int rank);
void floating(const char* op, const Tensor& t);
void dtype(const char* op, std::string_view what, const Tensor& t, DType wanted);
/// Undefined tensors are passed over.
void same_device(const char* op, std::initializer_list<const Tensor*> tensors);
void same_dtype(const char* op, std::initializer_list<const Tensor*> tensors);
/// Undefined tensors are passed over. Parameters have the dtype of x, or f32 where x has 16 bits.
void parameters_dtype(const char* op, const Tensor& x, std::initializer_list<const Tensor*> parameters);
void same_shape(const char* op, const Tensor& a, const Tensor& b);
/// In-place ops read and write element by element: throws AutogradError if `source` shares some, but not the very same,
/// memory with `target`.
void no_partial_overlap(const char* op, const Tensor& target, const Tensor& source);
/// t is undefined or of exactly this shape.
void shape_if_defined(const char* op, std::string_view what, const Tensor& t, const Shape& wanted);
/// Every factor in [low, 2^31): larger ones are typing errors and would overflow the arithmetic on sizes.
void sizes_in_range(const char* op, std::string_view what, Size2 value, std::int64_t low);

/// Places of a window of `kernel` (dilated) over `in` + 2*padding with `stride`, rounded down or up. Throws ShapeError
/// that states the arithmetic if the window is larger than the padded input. `axis` is "height" or "width".
std::int64_t window_places(const char* op, std::string_view axis, const Tensor& x, std::int64_t in, std::int64_t kernel,
                           std::int64_t stride, std::int64_t padding, std::int64_t dilation, bool ceil_mode = false);

}  // namespace cuttle::check
