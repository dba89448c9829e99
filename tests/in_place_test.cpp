#include <doctest/doctest.h>

#include "cuttle/autograd.hpp"
#include "cuttle/error.hpp"
#include "cuttle/ops.hpp"
#include "support/leaf.hpp"

using namespace cuttle;
using namespace cuttle::testing;

TEST_CASE("in-place ops change the memory and return the same tensor") {
  Tensor x = Tensor::from(Floats{-1, 2}, {2});
  const Tensor y = relu_(x);
  CHECK(y.impl() == x.impl());
  CHECK(x.to_vector<float>() == Floats{0, 2});
  CHECK(add_(x, Tensor::ones({2})).impl() == x.impl());
  CHECK(x.to_vector<float>() == Floats{1, 3});
}

TEST_CASE("in-place ops of a result are recorded like the others") {
  Tensor x = leaf({-1, 2, 3}), b = leaf({1, 1, -9});
  Tensor h = mul(x, 2);
  add_(h, b);
  relu_(h);
  CHECK(h.to_vector<float>() == Floats{0, 5, 0});
  sum(h).backward();
  CHECK(grad_of(x) == Floats{0, 2, 0});
  CHECK(grad_of(b) == Floats{0, 1, 0});
}

TEST_CASE("a constant that takes a leaf in by add_ carries its history") {
  Tensor x = leaf({1, 2});
  Tensor total = Tensor::zeros({2});
  add_(total, x);
  add_(total, mul(x, 3));
  CHECK(total.requires_grad());
  sum(total).backward();
  CHECK(grad_of(x) == Floats{4, 4});
}

TEST_CASE("adding a result to itself in place doubles its gradient") {
  Tensor x = leaf({1, 2});
  Tensor h = mul(x, 3);
  add_(h, h);
  CHECK(h.to_vector<float>() == Floats{6, 12});
  sum(h).backward();
  CHECK(grad_of(x) == Floats{6, 6});
}

TEST_CASE("an in-place change of a saved output names the op that saved it, both versions and the changer") {
  Tensor x = leaf({1, -2});
  const Tensor y = relu(mul(x, 2));
  add_(y, Tensor::ones({2}));
  const Tensor loss = sum(y);
  CHECK_THROWS_WITH_AS(loss.backward(), doctest::Contains("backward of 'relu'"), AutogradError);
}

TEST_CASE("an in-place change of a saved input is an error") {
  Tensor x = Tensor::ones({1, 1, 3, 3});
  Tensor w = Tensor::ones({1, 1, 2, 2}).requires_grad_();
  const Tensor loss = sum(conv2d(x, w));
  x.fill_(7);
  CHECK_THROWS_WITH_AS(loss.backward(), doctest::Contains("'fill_' changed it in place"), AutogradError);
  CHECK_FALSE(w.grad().defined());
}

TEST_CASE("a weight changed between forward and backward is an error") {
  Tensor x = Tensor::ones({2, 3}).requires_grad_();
  Tensor w = Tensor::ones({4, 3}).requires_grad_();
  const Tensor loss = sum(linear(x, w));
  {
    const NoGrad no_grad;
    w.fill_(2);
  }
  CHECK_THROWS_WITH_AS(loss.backward(), doctest::Contains("backward of 'linear'"), AutogradError);
}

TEST_CASE("writing through mutable_data counts as a change") {
  Tensor x = Tensor::ones({2, 3});
  Tensor w = Tensor::ones({4, 3}).requires_grad_();
  const Tensor loss = sum(linear(x, w));
  x.mutable_data<float>()[0] = 5;
  CHECK_THROWS_WITH_AS(loss.backward(), doctest::Contains("'mutable_data' changed it"), AutogradError);
}

TEST_CASE("a change that no saved tensor needs does no harm") {
  Tensor x = Tensor::ones({2, 2});
  Tensor y = leaf({1, 2, 3, 4}).reshape({2, 2});
  const Tensor h = add(y, x);  // keeps neither
  x.fill_(7);
  CHECK_NOTHROW(sum(h).backward());
}

TEST_CASE("a leaf that needs a gradient cannot be changed in place, except under NoGrad") {
  Tensor x = leaf({-1, 2});
  const Tensor one = Tensor::ones({2});
  CHECK_THROWS_WITH_AS(relu_(x), doctest::Contains("a leaf that needs a gradient"), AutogradError);
  CHECK_THROWS_WITH_AS(add_(x, one), doctest::Contains("'add_' would change f32[2] cpu"), AutogradError);
  CHECK_THROWS_AS(x.fill_(0), AutogradError);
  CHECK_THROWS_AS(x.copy_(one), AutogradError);
  CHECK(x.to_vector<float>() == Floats{-1, 2});
  CHECK(x.version() == 0);
  const NoGrad no_grad;
  CHECK(relu_(x).to_vector<float>() == Floats{0, 2});
  CHECK(x.requires_grad());
}

TEST_CASE("a leaf cannot be changed with history through a view of it") {
  Tensor x = Tensor::ones({2, 2}).requires_grad_();
  const Tensor b = leaf({1, 2, 3, 4});
  CHECK_THROWS_AS(relu_(x.reshape({4})), AutogradError);
  CHECK_THROWS_AS(relu_(x.slice(0, 1)), AutogradError);
  CHECK_THROWS_AS(add_(x.detach().reshape({4}), b), AutogradError);
  CHECK(x.to_vector<float>() == Floats(4, 1.0f));
}

TEST_CASE("a constant cannot take history in through a view of it: the constant would not know") {
  const Tensor c = Tensor::zeros({2, 2});
  const Tensor b = leaf({1, 2, 3, 4});
  CHECK_THROWS_WITH_AS(add_(c.reshape({4}), b), doctest::Contains("a view of a tensor that does not record it"),
                       AutogradError);
  CHECK_NOTHROW(add_(c.reshape({4}), Tensor::ones({4})));
  CHECK(c.to_vector<float>() == Floats(4, 1.0f));
}

TEST_CASE("a result changed through a view cannot be used under its old history") {
  Tensor x = leaf({-1, 2, -3, 4});
  const Tensor h = mul(x, 2);
  const Tensor view = h.reshape({2, 2});
  relu_(view);
  CHECK_THROWS_WITH_AS(sum(h), doctest::Contains("'relu_' changed its memory"), AutogradError);
  sum(view).backward();  // the view's own history is right
  CHECK(grad_of(x) == Floats{0, 2, 0, 2});
}

TEST_CASE("a view taken before its base was changed cannot be used under its old history") {
  Tensor x = leaf({-1, 2, -3, 4});
  const Tensor h = mul(x, 2);
  const Tensor view = h.slice(0, 2);
  relu_(h);
  CHECK_THROWS_AS(sum(view), AutogradError);
  CHECK_THROWS_AS(relu_(view), AutogradError);
  CHECK_THROWS_AS(view.backward(Tensor::ones({2})), AutogradError);
  sum(h).backward();
  CHECK(grad_of(x) == Floats{0, 2, 0, 2});
}

TEST_CASE("a constant that has views cannot take history in: the views would pass for constants") {
  Tensor x = leaf({1, 2});
  Tensor total = Tensor::zeros({2});
  {
    const Tensor view = total.reshape({1, 2});
    CHECK_THROWS_WITH_AS(add_(total, x), doctest::Contains("views"), AutogradError);
    CHECK(view.to_vector<float>() == Floats{0, 0});
  }
  CHECK_NOTHROW(add_(total, x));
}

TEST_CASE("copy_ from a tensor that needs a gradient would lose it silently, so it is refused") {
  Tensor x = leaf({1, 2});
  Tensor buffer = Tensor::zeros({2});
  CHECK_THROWS_AS(buffer.copy_(mul(x, 2)), AutogradError);
  const NoGrad no_grad;
  CHECK_NOTHROW(buffer.copy_(x));
  CHECK(buffer.to_vector<float>() == Floats{1, 2});
}

TEST_CASE("under NoGrad a result may be changed but then no longer differentiated") {
  Tensor x = leaf({1, 2});
  Tensor h = mul(x, 2);
  {
    const NoGrad no_grad;
    h.fill_(0);
  }
  CHECK_THROWS_AS(sum(h).backward(), AutogradError);
}

TEST_CASE("a failed in-place op has changed nothing") {
  Tensor x = leaf({-1, 2});
  Tensor h = mul(x, 2);
  const std::uint32_t version = h.version();
  CHECK_THROWS_AS(add_(h, Tensor::ones({3})), ShapeError);
  CHECK_THROWS_AS(add_(h, Tensor::ones({2}, {.dtype = DType::f64})), DtypeError);
  CHECK(h.version() == version);
  sum(h).backward();
  CHECK(grad_of(x) == Floats{2, 2});
}

TEST_CASE(
    "copy_ keeps the values in their logical places, whatever the two dtypes and layouts, and counts as a change") {
  const Tensor values = Tensor::randn({2, 3, 4, 5}, {.layout = Layout::nchw});
  for (const DType from : {DType::f32, DType::f16, DType::bf16}) {
    for (const DType to : {DType::f32, DType::f16, DType::bf16}) {
      for (const Layout from_layout : {Layout::nhwc, Layout::nchw}) {
        for (const Layout to_layout : {Layout::nhwc, Layout::nchw}) {
          const Tensor source = values.to(from).to(from_layout);
          Tensor target = Tensor::zeros({2, 3, 4, 5}, {.dtype = to, .layout = to_layout});
          const std::uint32_t version = target.version();
          target.copy_(source);
          CHECK(target.version() > version);
          CHECK(target.to_vector<float>() == values.to(from).to(to).to_vector<float>());
        }
      }
    }
  }
}

TEST_CASE("add_ and copy_ refuse a source that overlaps part of the target") {
  Tensor x = Tensor::ones({6});
  Tensor later = x.slice(1, 6);
  CHECK_THROWS_AS(add_(later, x.slice(0, 5)), AutogradError);
  CHECK_THROWS_AS(later.copy_(x.slice(0, 5)), AutogradError);
  CHECK(x.to_vector<float>() == Floats(6, 1));
  Tensor front = x.slice(0, 3);
  add_(front, x.slice(3, 6));  // side by side is no overlap
  CHECK(x.to_vector<float>() == Floats{2, 2, 2, 1, 1, 1});
}

TEST_CASE("a result added to itself under another name is refused before it is changed") {
  Tensor x = leaf({1, 2});
  Tensor h = mul(x, 1);
  CHECK_THROWS_AS(add_(h, h.slice(0, 2)), AutogradError);
  CHECK(h.to_vector<float>() == Floats{1, 2});
  sum(h).backward();
  CHECK(grad_of(x) == Floats{1, 1});
}
