#include <doctest/doctest.h>

#include "cuttle/autograd.hpp"
#include "cuttle/error.hpp"
#include "cuttle/memory.hpp"
#include "cuttle/nn.hpp"
#include "support/formula.hpp"

using namespace cuttle;
using namespace cuttle::testing;

namespace {

using Floats = std::vector<float>;

/// Leaves of one batch norm with a residual.
struct Leaves {
  Tensor x, weight, bias, residual;

  explicit Leaves(Layout layout) {
    const Shape shape{3, 5, 4, 3};
    x = formula_tensor(shape, {.seed = 1, .scale = 2}, {.layout = layout}).requires_grad_();
    weight = formula_tensor({5}, {.seed = 2, .shift = 1}).requires_grad_();
    bias = formula_tensor({5}, {.seed = 3}).requires_grad_();
    residual = formula_tensor(shape, {.seed = 4}, {.layout = layout}).requires_grad_();
  }
  Tensor normalize(const Activation& then, bool training) const {
    const Tensor mean = formula_tensor({5}, {.seed = 5}), var = formula_tensor({5}, {.seed = 6, .shift = 2});
    return batch_norm2d(x, weight, bias, mean, var, {.training = training}, then);
  }
  std::vector<Floats> gradients(const Tensor& y) const {
    y.backward(formula_tensor(y.shape(), {.seed = 7}, y.options()));
    std::vector<Floats> all;
    for (const Tensor& leaf : {x, weight, bias, residual}) {
      all.push_back(leaf.grad().defined() ? leaf.grad().to_vector<float>() : Floats());
    }
    return all;
  }
};

}  // namespace

TEST_CASE("batch_norm2d with an activation gives the bits of the ops one after the other") {
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    for (const bool training : {true, false}) {
      for (const bool with_residual : {true, false}) {
        for (const bool with_relu : {true, false}) {
          CAPTURE(training);
          CAPTURE(with_residual);
          CAPTURE(with_relu);
          const Leaves together(layout), apart(layout);
          Activation then{.relu = with_relu};
          if (with_residual) then.residual = together.residual;
          const Tensor y = together.normalize(then, training);
          Tensor expected = apart.normalize({}, training);
          if (with_residual) expected = add(expected, apart.residual);
          if (with_relu) expected = relu(expected);
          CHECK(y.to_vector<float>() == expected.to_vector<float>());
          CHECK(together.gradients(y) == apart.gradients(expected));
        }
      }
    }
  }
}

TEST_CASE("a batch norm whose output has several consumers gives the bits of one that gets the sum") {
  using Use = Tensor (*)(const Tensor&);
  const Use both = [](const Tensor&y) { return add(mul(y, 0.3), relu(y)); },
            same = [](const Tensor&y) { return add(y, y); },
            three = [](const Tensor&y) { return add(add(mul(y, 0.3), relu(y)), mul(y, -1.7)); },
            shared = [](const Tensor&y) { return add(y, mul(y, 0.3)); },
            views = [](const Tensor&y) { return mul(add(y.slice(0, 2), y.slice(1, 3)), 0.7); },
            flat = [](const Tensor&y) { return add(y.reshape({-1}), mul(y, 0.3).reshape({-1})); };
  for (const Use use : {both, same, three, shared, views, flat}) {
    for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
      for (const bool with_residual : {true, false}) {
        for (const bool with_relu : {true, false}) {
          CAPTURE(with_residual);
          CAPTURE(with_relu);
          const Leaves two(layout), one(layout);
          const auto normalize = [&](const Leaves& leaves) {
            return leaves.normalize({with_residual ? leaves.residual : Tensor(), with_relu}, true);
          };
          const auto actual = two.gradients(use(normalize(two)));
          // The product's node sums what its consumers give it.
          CHECK(actual == one.gradients(use(mul(normalize(one), 1))));
        }
      }
    }
  }
}

TEST_CASE("two gradients of a batch norm need no more memory than their sum, and an error drops both") {
  memory::CachingAllocator& allocator = memory::allocator(kCpu);
  const Shape shape{4, 16, 32, 32};
  const Tensor x = formula_tensor(shape, {.seed = 1}).requires_grad_();
  const Tensor residual = formula_tensor(shape, {.seed = 2}).requires_grad_();
  const auto normalized = [&] { return batch_norm2d(x, {}, {}, {}, {}, {.training = true}, {residual, true}); };
  const std::uint64_t before = allocator.stats().allocated_bytes;
  {
    const Tensor y = normalized();
    const Tensor loss = sum(add(mul(y, 2), mul(y, 3)));
    allocator.reset_peak_stats();
    loss.backward();
    // y, its sum and the products' sum; two gradients, in whose places those of x and the residual lie.
    CHECK(allocator.stats().peak_allocated_bytes < before + 6 * x.nbytes());
    CHECK_THROWS_WITH_AS(loss.backward(), doctest::Contains("second time"), AutogradError);
  }
  CHECK(allocator.stats().allocated_bytes == before + 2 * x.nbytes());
  const Floats expected = x.grad().to_vector<float>();
  for (const Tensor* t : {&x, &residual}) Tensor(*t).set_grad({});
  {
    Tensor y = normalized();
    const Tensor loss = sum(add(mul(y, 2), mul(y, 3)));
    const NoGrad no_grad;
    y.zero_();  // the backward needs it as it was
    CHECK_THROWS_AS(loss.backward(), AutogradError);
  }
  CHECK_FALSE(x.grad().defined());
  CHECK(allocator.stats().allocated_bytes == before);
  const Tensor y = normalized();
  sum(add(mul(y, 2), mul(y, 3))).backward();
  CHECK(x.grad().to_vector<float>() == expected);
}

TEST_CASE("a residual of the other layout is converted and gets its gradient in its own") {
  const Leaves same(Layout::nhwc), mixed(Layout::nhwc);
  const Tensor other = same.residual.detach().to(Layout::nchw).clone().requires_grad_();
  const Tensor y = same.normalize({.residual = same.residual, .relu = true}, true);
  const Tensor z = mixed.normalize({.residual = other, .relu = true}, true);
  CHECK(z.layout() == Layout::nhwc);
  CHECK(z.to_vector<float>() == y.to_vector<float>());
  same.gradients(y);
  mixed.gradients(z);
  CHECK(other.grad().layout() == Layout::nchw);
  CHECK(other.grad().to_vector<float>() == same.residual.grad().to_vector<float>());
}

TEST_CASE("the residual alone may want a gradient, and it may be the input itself") {
  Leaves leaves(Layout::nhwc);
  for (Tensor* t : {&leaves.x, &leaves.weight, &leaves.bias}) t->requires_grad_(false);
  const Tensor y = leaves.normalize({.residual = leaves.residual, .relu = true}, true);
  leaves.gradients(y);
  const Floats out = y.to_vector<float>(), g = leaves.residual.grad().to_vector<float>();
  const std::vector<double> dy = formula_values(y.numel(), {.seed = 7});
  for (std::size_t i = 0; i < out.size(); ++i) CHECK(g[i] == (out[i] > 0 ? static_cast<float>(dy[i]) : 0));

  const Leaves twice(Layout::nhwc), apart(Layout::nhwc);
  const Tensor a = twice.normalize({.residual = twice.x}, true), b = add(apart.normalize({}, true), apart.x);
  CHECK(twice.gradients(a)[0] == apart.gradients(b)[0]);
}

TEST_CASE("changing the output of a clamped batch norm in place makes its backward an error") {
  const Leaves leaves(Layout::nhwc);
  for (const bool training : {true, false}) {
    Tensor y = leaves.normalize({.residual = leaves.residual, .relu = true}, training);
    const Tensor loss = sum(y);
    {
      const NoGrad no_grad;
      y.zero_();
    }
    CHECK_THROWS_WITH_AS(loss.backward(), doctest::Contains("'fill_' changed it"), AutogradError);
  }
  // Without the clamp the output is not kept, nor where the input tells what was clamped.
  CHECK_NOTHROW(sum(relu_(leaves.normalize({.residual = leaves.residual}, true))).backward());
  CHECK_NOTHROW(sum(mul(relu_(leaves.normalize({.relu = true}, true)), 2)).backward());
}

TEST_CASE("a clamped batch norm keeps its input alone, and the input's gradient takes its place") {
  memory::CachingAllocator& allocator = memory::allocator(kCpu);
  const Shape shape{4, 16, 32, 32};
  const Tensor leaf = formula_tensor(shape, {.seed = 1}).requires_grad_();
  const std::uint64_t before = allocator.stats().allocated_bytes, activation = leaf.nbytes();
  const auto pooled = [](const Tensor& x) {
    return sum(max_pool2d(batch_norm2d(x, {}, {}, {}, {}, {.training = true}, {.relu = true}), {.kernel = 2}));
  };
  {
    const Tensor loss = pooled(mul(leaf, 1));
    // The product, and of the pooling a byte for each of a quarter as many elements.
    CHECK(allocator.stats().allocated_bytes < before + activation + activation / 8);
    allocator.reset_peak_stats();
    loss.backward();
    // The product, in whose place its gradient lies; the output's gradient, and behind the clamp.
    CHECK(allocator.stats().peak_allocated_bytes < before + 3 * activation + activation / 8);
  }
  const Floats in_place = leaf.grad().to_vector<float>();
  Tensor(leaf).set_grad({});
  const Tensor kept = mul(leaf, 1);
  const Floats values = kept.to_vector<float>();
  pooled(kept).backward();
  CHECK(kept.to_vector<float>() == values);
  CHECK(leaf.grad().to_vector<float>() == in_place);
}

TEST_CASE("what does not fit a batch norm's activation is an error") {
  const Leaves leaves(Layout::nhwc);
  const Tensor other = Tensor::zeros({3, 5, 4, 4}), wide = leaves.residual.detach().to(DType::f64);
  CHECK_THROWS_WITH_AS(leaves.normalize({.residual = other}, true), doctest::Contains("f32[3,5,4,4]"), ShapeError);
  CHECK_THROWS_AS(leaves.normalize({.residual = wide}, true), DtypeError);
  CHECK_THROWS_WITH_AS(leaves.normalize({.relu = true, .ceiling = 0}, true), doctest::Contains("ceiling 0"),
                       UsageError);
}

TEST_CASE("BatchNorm2d's joint calls equal the layers one after the other, count batches and are observed") {
  const Tensor x = formula_tensor({2, 4, 3, 5}, {.seed = 1, .scale = 9}), r = formula_tensor({2, 4, 3, 5}, {.seed = 2});
  nn::BatchNorm2d bn(4), plain(4);
  {
    const NoGrad no_grad;
    for (nn::BatchNorm2d* layer : {&bn, &plain}) layer->weight.fill_(5);
  }
  int seen = 0;
  const nn::ObserverScope scope([&](nn::Module& module, const Tensor&) { seen += &module == &bn; });
  for (int pass = 0; pass < 2; ++pass) {
    const Tensor h = plain(x);
    CHECK(bn.relu(x).to_vector<float>() == relu(h).to_vector<float>());
    CHECK(bn.add(x, r).to_vector<float>() == add(h, r).to_vector<float>());
    CHECK(bn.add_relu(x, r).to_vector<float>() == relu(add(h, r)).to_vector<float>());
    Floats six = relu(h).to_vector<float>();
    for (float& value : six) value = std::min(value, 6.0f);
    CHECK(bn.relu6(x).to_vector<float>() == six);
    CHECK(bn.num_batches_tracked.item<std::int64_t>() == 4);
    CHECK(seen == 4 * (pass + 1));
    // In evaluation nothing is counted, and both have seen the same batch so often that their statistics must agree.
    const NoGrad no_grad;
    plain.running_mean.copy_(bn.running_mean);
    plain.running_var.copy_(bn.running_var);
    bn.eval();
    plain.eval();
  }
}
