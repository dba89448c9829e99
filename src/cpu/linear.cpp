#include <limits>

#include "cpu/conv/product.hpp"
#include "cpu/dispatch.hpp"
#include "cpu/elementwise.hpp"
#include "cpu/gemm.hpp"
#include "cpu/layout.hpp"
#include "cpu/register.hpp"
#include "kernels.hpp"

namespace cuttle::cpu {

namespace {

/// A matrix [rows, columns] as that many images of one pixel: linear layers are 1x1 convolutions of those.
template <class T> Patches<T> rows_of(const Tensor& matrix) {
  return {matrix.data<T>(), 1, 1, matrix.size(1), matrix.size(1), 1, 1, 1, {{0, 0, 1}}};
}

template <class T> PatchProduct<T> row_product(const Tensor& in, const Tensor& out) {
  return {.patches = rows_of<T>(in),
          .images = in.size(0),
          .groups = 1,
          .columns = out.size(1),
          .out = writable<T>(out),
          .out_height = 1,
          .out_width = 1,
          .out_offset = 0,
          .out_stride = 1,
          .bias = nullptr,
          .pack_panel = {}};
}

template <class T> void forward(const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y) {
  const T* weights = w.data<T>();
  const std::int64_t inputs = w.size(1), outputs = w.size(0);
  PatchProduct<T> product = row_product<T>(x, y);
  if (bias.defined()) product.bias = bias.data<T>();
  product.pack_panel = [=](std::int64_t, std::int64_t panel, T* packed) {
    pack_panel_transposed(weights, inputs, inputs, outputs, panel, packed);
  };
  multiply_patches(product);
}

template <class T> void backward_data(const Tensor& dy, const Tensor& w, const Tensor& dx) {
  const T* weights = w.data<T>();
  const std::int64_t inputs = w.size(1), outputs = w.size(0);
  PatchProduct<T> product = row_product<T>(dy, dx);
  product.pack_panel = [=](std::int64_t, std::int64_t panel, T* packed) {
    pack_panel(weights, inputs, outputs, inputs, panel, packed);
  };
  multiply_patches(product);
}

template <class T> void backward_weight(const Tensor& dy, const Tensor& x, const Tensor& dw, bool accumulate) {
  patch_gradient<T>({.patches = rows_of<T>(x),
                     .images = x.size(0),
                     .groups = 1,
                     .dy = dy.data<T>(),
                     .filters = dw.size(0),
                     .out = writable<T>(dw),
                     .accumulate = accumulate});
}

constexpr double kNoCeiling = std::numeric_limits<double>::infinity();

template <class T> void sum_rows(const Tensor& dy, const Tensor& db, bool accumulate) {
  const std::int64_t columns = dy.size(1);
  const T* from = dy.data<T>();
  const auto add_rows = [=](std::int64_t, std::int64_t begin, std::int64_t end, T* sums) {
    for (std::int64_t row = begin; row < end; ++row) {
      const T* values = from + row * columns;
      for (std::int64_t k = 0; k < columns; ++k) sums[k] += values[k];
    }
  };
  add_parts<T>(dy.numel() / columns, 1 + 4096 / columns, 1, columns, writable<T>(db), accumulate, add_rows);
}

void bias_backward(const Tensor& dy, const Tensor& db, bool accumulate) {
  dispatch_floating("bias_backward", dy, [&](auto type) { sum_rows<decltype(type)>(to_nhwc(dy), db, accumulate); });
}

}  // namespace

void register_linear(Kernels& k) {
  k.linear = [](const Tensor& x, const Tensor& w, const Tensor& bias, bool relu, const Tensor& y) {
    dispatch_floating("linear", x, [&](auto type) { forward<decltype(type)>(x, w, bias, y); });
    if (relu) cpu::relu(y, kNoCeiling, y);
  };
  k.linear_backward_data = [](const Tensor& dy, const Tensor& w, const Tensor& dx) {
    dispatch_floating("linear_backward_data", dy, [&](auto type) { backward_data<decltype(type)>(dy, w, dx); });
  };
  k.linear_backward_weight = [](const Tensor& dy, const Tensor& x, const Tensor& dw, bool accumulate) {
    dispatch_floating("linear_backward_weight", dy,
                      [&](auto type) { backward_weight<decltype(type)>(dy, x, dw, accumulate); });
  };
  k.bias_backward = bias_backward;
  k.bias_relu_backward = [](const Tensor& y, const Tensor& dy, const Tensor& dx, const Tensor& db, bool accumulate) {
    relu_backward(y, dy, kNoCeiling, dx);
    bias_backward(dx, db, accumulate);
  };
}

}  // namespace cuttle::cpu
