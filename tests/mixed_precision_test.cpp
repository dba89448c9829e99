#include <doctest/doctest.h>

#include "autograd/copy.hpp"
#include "autograd/node.hpp"
#include "cuttle/autograd.hpp"
#include "cuttle/error.hpp"
#include "cuttle/nn.hpp"
#include "cuttle/ops.hpp"
#include "kernels.hpp"
#include "ops/gradient.hpp"

namespace {

using namespace cuttle;
using Floats = std::vector<float>;

Tensor parameter(const Floats& values) {
  Tensor p = Tensor::from(values, {static_cast<std::int64_t>(values.size())});
  return p.requires_grad_();
}

/// The result of an op that delivers `gradient` to `leaf`.
Tensor fake_op(const Tensor& leaf, const Tensor& gradient) {
  Tensor out = Tensor::scalar(0);
  autograd::record("fake", out, {&leaf}, [gradient](Tensor, autograd::Gradients& in) { in.give(0, gradient.clone()); });
  return out;
}

Tensor half(const Floats& values) {
  return Tensor::from(values, {static_cast<std::int64_t>(values.size())}).to(DType::f16);
}

Kernels real;

Tensor wide(const Tensor& t) { return t.defined() ? t.to(DType::f32) : t; }

void put(const Tensor& narrow, const Tensor& result) { real.convert(result, narrow); }

template <class Work> void through_f32(const Tensor& out, const Work& work) {
  const Tensor result = Tensor::empty(out.shape(), {DType::f32, out.device(), out.layout()});
  work(result);
  put(out, result);
}

/// While it lives, convolution and linear kernels of the CPU take 16 bits, and compute in f32.
struct HalfKernels {
  HalfKernels() {
    Kernels& k = backend(DeviceKind::cpu).kernels;
    real = k;
    k.conv2d = [](const Tensor& x, const Tensor& w, const Tensor& b, const Conv2dOptions& o, bool relu,
                  const Tensor& y) {
      CHECK(x.dtype() == w.dtype());
      CHECK(x.dtype() == b.dtype());
      through_f32(y, [&](const Tensor& r) { real.conv2d(wide(x), wide(w), wide(b), o, relu, r); });
    };
    k.conv2d_backward_data = [](const Tensor& dy, const Tensor& w, const Conv2dOptions& o, const Tensor& dx) {
      through_f32(dx, [&](const Tensor& r) { real.conv2d_backward_data(wide(dy), wide(w), o, r); });
    };
    k.conv2d_backward_filter = [](const Tensor& dy, const Tensor& x, const Conv2dOptions& o, const Tensor& dw,
                                  bool accumulate) {
      CHECK(!accumulate);
      through_f32(dw, [&](const Tensor& r) { real.conv2d_backward_filter(wide(dy), wide(x), o, r, false); });
    };
    k.bias_backward = [](const Tensor& dy, const Tensor& db, bool accumulate) {
      CHECK(!accumulate);
      through_f32(db, [&](const Tensor& r) { real.bias_backward(wide(dy), r, false); });
    };
    k.linear = [](const Tensor& x, const Tensor& w, const Tensor& b, bool relu, const Tensor& y) {
      CHECK(x.dtype() == w.dtype());
      through_f32(y, [&](const Tensor& r) { real.linear(wide(x), wide(w), wide(b), relu, r); });
    };
    k.linear_backward_data = [](const Tensor& dy, const Tensor& w, const Tensor& dx) {
      through_f32(dx, [&](const Tensor& r) { real.linear_backward_data(wide(dy), wide(w), r); });
    };
    k.linear_backward_weight = [](const Tensor& dy, const Tensor& x, const Tensor& dw, bool accumulate) {
      CHECK(!accumulate);
      through_f32(dw, [&](const Tensor& r) { real.linear_backward_weight(wide(dy), wide(x), r, false); });
    };
  }
  ~HalfKernels() { backend(DeviceKind::cpu).kernels = real; }
};

/// In steps of 1/8, so that f16 holds products and sums exactly.
Tensor eighths(const Shape& shape, int seed) {
  Floats values(static_cast<std::size_t>(shape.numel()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>((static_cast<int>(i) * 7 + seed) % 9 - 4) / 8;
  }
  return Tensor::from(values, shape);
}

}  // namespace

TEST_CASE("an f32 leaf keeps one gradient of 16 bits as it came, and adds further ones in f32") {
  Tensor p = parameter({1, 2});
  fake_op(p, half({0.5, 3})).backward();
  CHECK(p.grad().dtype() == DType::f16);
  CHECK(p.grad().to_vector<float>() == Floats{0.5, 3});
  // 2048 + 1 is no f16.
  p.set_grad(half({2048, 1}));
  fake_op(p, half({1, 1})).backward();
  CHECK(p.grad().dtype() == DType::f32);
  CHECK(p.grad().to_vector<float>() == Floats{2049, 2});
  fake_op(p, half({1, 1})).backward();
  CHECK(p.grad().to_vector<float>() == Floats{2050, 3});
  fake_op(p, Tensor::from(Floats{0.25, 0.25}, {2})).backward();
  CHECK(p.grad().to_vector<float>() == Floats{2050.25, 3.25});
}

TEST_CASE("a leaf refuses gradients that it cannot be updated from") {
  Tensor p = parameter({1, 2});
  CHECK_NOTHROW(p.set_grad(half({1, 1}).to(DType::bf16)));
  CHECK_THROWS_AS(p.set_grad(Tensor::ones({2}, {.dtype = DType::f64})), DtypeError);
  CHECK_THROWS_AS(fake_op(p, Tensor::ones({2}, {.dtype = DType::f64})).backward(), AutogradError);
  Tensor h = half({1, 2}).requires_grad_();
  CHECK_THROWS_AS(h.set_grad(Tensor::ones({2})), DtypeError);
}

TEST_CASE("kernels that add to a gradient are not given one of 16 bits of an f32 leaf") {
  Tensor p = parameter({1, 2});
  const auto deliver = [&] {
    Tensor out = Tensor::scalar(0);
    bool accumulated = false;
    autograd::record("fake", out, {&p}, [&](Tensor, autograd::Gradients& in) {
      autograd::give_accumulating(in, 0, {2}, {DType::f16}, false, [&](const Tensor& g, bool accumulate) {
        accumulated = accumulate;
        real = backend(DeviceKind::cpu).kernels;
        put(g, Tensor::ones({2}));
      });
    });
    out.backward();
    return accumulated;
  };
  CHECK(!deliver());
  CHECK(!deliver());
  CHECK(!deliver());
  CHECK(p.grad().dtype() == DType::f32);
  CHECK(p.grad().to_vector<float>() == Floats{3, 3});
}

TEST_CASE("a parameter's copy is made once, follows its changes at its place, and is dropped with its data") {
  Tensor p = parameter({1, 2});
  const Tensor copy = autograd::in_dtype(p, DType::f16);
  CHECK(copy.dtype() == DType::f16);
  CHECK(!copy.requires_grad());
  CHECK(autograd::in_dtype(p, DType::f16).impl() == copy.impl());
  const std::uint32_t version = copy.version();
  {
    const NoGrad no_grad;
    p.fill_(7);
  }
  CHECK(autograd::in_dtype(p, DType::f16).impl() == copy.impl());
  CHECK(copy.to_vector<float>() == Floats{7, 7});
  CHECK(copy.version() > version);
  CHECK(autograd::in_dtype(p, DType::bf16).dtype() == DType::bf16);
  CHECK(autograd::in_dtype(p, DType::f32).impl() == p.impl());
  p.set_data(Tensor::from(Floats{3, 4}, {2}));
  CHECK(autograd::in_dtype(p, DType::bf16).to_vector<float>() == Floats{3, 4});
}

TEST_CASE("a result is converted with its history") {
  Tensor p = parameter({1, 2});
  const Tensor converted = autograd::in_dtype(mul(p, 3), DType::f16);
  CHECK(converted.requires_grad());
  converted.backward(half({1, 2}));
  CHECK(p.grad().dtype() == DType::f32);
  CHECK(p.grad().to_vector<float>() == Floats{3, 6});
}

TEST_CASE("conv2d and linear use f32 parameters for f16 activations, with gradients of 16 bits") {
  const auto run = [](DType dtype, Layout weight_layout) {
    Tensor w = eighths({3, 2, 3, 3}, 1).to(weight_layout).requires_grad_(), b = eighths({3}, 2).requires_grad_();
    Tensor fw = eighths({2, 48}, 3).requires_grad_(), fb = eighths({2}, 4).requires_grad_();
    Tensor x = eighths({2, 2, 4, 4}, 5).to(dtype).requires_grad_();
    const Tensor y = conv2d(x, w, b, {.padding = 1});
    CHECK(y.dtype() == dtype);
    const Tensor z = linear(flatten(y), fw, fb);
    CHECK(z.dtype() == dtype);
    z.backward(eighths({2, 2}, 6).to(dtype));
    std::vector<Floats> results{z.to_vector<float>()};
    for (const Tensor& t : {x, w, b, fw, fb}) {
      CHECK(t.grad().dtype() == dtype);
      results.push_back(t.grad().to_vector<float>());
    }
    return results;
  };
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    const std::vector<Floats> expected = run(DType::f32, layout);
    const HalfKernels scope;
    const std::vector<Floats> got = run(DType::f16, layout);
    for (std::size_t i = 0; i < got.size(); ++i) {
      REQUIRE(got[i].size() == expected[i].size());
      for (std::size_t j = 0; j < got[i].size(); ++j) {
        CHECK(got[i][j] == doctest::Approx(expected[i][j]).epsilon(2e-3));
      }
    }
  }
}

TEST_CASE(
    "parameters of 16 bits do not serve f32 activations, nor f64 parameters f16 ones; the CPU says what it lacks") {
  const Tensor x = Tensor::zeros({1, 2}), w = Tensor::zeros({3, 2});
  CHECK_THROWS_AS(linear(x, w.to(DType::f16)), DtypeError);
  CHECK_THROWS_AS(linear(x.to(DType::f16), w.to(DType::f64)), DtypeError);
  CHECK_THROWS_WITH_AS(linear(x.to(DType::f16), w), doctest::Contains("f16"), DtypeError);
}
