#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cuttle/autograd.hpp"
#include "cuttle/error.hpp"
#include "cuttle/models.hpp"
#include "cuttle/nn.hpp"
#include "support/formula.hpp"

using namespace cuttle;
using namespace cuttle::testing;

namespace {

using Floats = std::vector<float>;

/// Leaves of a convolution (rank 4) or a linear layer, and the op on them.
struct Leaves {
  Tensor x, weight, bias;

  Leaves(int rank, Layout layout, bool with_bias) {
    const Shape in = rank == 4 ? Shape{3, 4, 6, 5} : Shape{7, 12},
                filters = rank == 4 ? Shape{5, 4, 3, 3} : Shape{5, 12};
    x = formula_tensor(in, {.seed = 1}, {.layout = layout}).requires_grad_();
    weight = formula_tensor(filters, {.seed = 2}, {.layout = layout}).requires_grad_();
    if (with_bias) bias = formula_tensor({5}, {.seed = 3}).requires_grad_();
  }
  Tensor run(const Activation& then = {}) const {
    return x.rank() == 4 ? conv2d(x, weight, bias, {.padding = 1}, then) : linear(x, weight, bias, then);
  }
  Tensor like_result(std::uint64_t seed) const {
    return formula_tensor(x.rank() == 4 ? Shape{3, 5, 6, 5} : Shape{7, 5}, {.seed = seed}, x.options());
  }
  std::vector<Floats> gradients(const Tensor& y) const {
    y.backward(like_result(7));
    std::vector<Floats> all;
    for (const Tensor* leaf : {&x, &weight, &bias}) {
      all.push_back(leaf->defined() && leaf->grad().defined() ? leaf->grad().to_vector<float>() : Floats());
    }
    return all;
  }
};

/// All four combinations of layout and bias, for both ops.
void for_leaves(const std::function<void(const Leaves& together, const Leaves& apart)>& check) {
  for (const int rank : {4, 2}) {
    for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
      for (const bool with_bias : {true, false}) {
        CAPTURE(rank);
        CAPTURE(name_of(layout));
        CAPTURE(with_bias);
        check(Leaves(rank, layout, with_bias), Leaves(rank, layout, with_bias));
      }
    }
  }
}

}  // namespace

TEST_CASE("convolution and linear with an activation give the bits of the ops one after the other") {
  for_leaves([](const Leaves& together, const Leaves& apart) {
    for (int pass = 0; pass < 2; ++pass) {  // the second adds to the gradients of the first
      const Tensor y = together.run({.relu = true}), expected = relu_(apart.run());
      CHECK(y.to_vector<float>() == expected.to_vector<float>());
      CHECK(together.gradients(y) == apart.gradients(expected));
    }
    const Tensor residual = together.like_result(4), six = together.run({residual, true, 6});
    CHECK(six.to_vector<float>() == relu6(add(apart.run(), residual)).to_vector<float>());
    Floats below_two = apart.run().to_vector<float>();
    for (float& value : below_two) value = std::min(std::max(value, 0.0f), 2.0f);
    CHECK(together.run({.relu = true, .ceiling = 2}).to_vector<float>() == below_two);
    CHECK(together.run({.residual = residual}).to_vector<float>() == add(apart.run(), residual).to_vector<float>());
  });
}

TEST_CASE("the backward of a fused ReLU leaves a gradient that others hold alone") {
  for_leaves([](const Leaves& leaves, const Leaves&) {
    const Tensor y = leaves.run({.relu = true}), dy = leaves.like_result(7);
    const Floats before = dy.to_vector<float>();
    y.backward(dy);
    CHECK(dy.to_vector<float>() == before);
  });
}

TEST_CASE("the bias alone, or all but the bias, may want a gradient behind a fused ReLU") {
  for (const int rank : {4, 2}) {
    for (const bool bias_alone : {true, false}) {
      Leaves together(rank, Layout::nhwc, true), apart(rank, Layout::nhwc, true);
      for (Leaves* leaves : {&together, &apart}) {
        leaves->x.requires_grad_(!bias_alone);
        leaves->weight.requires_grad_(!bias_alone);
        leaves->bias.requires_grad_(bias_alone);
      }
      CHECK(together.gradients(together.run({.relu = true})) == apart.gradients(relu(apart.run())));
    }
  }
}

TEST_CASE("a residual of the other layout is converted for a convolution") {
  const Leaves leaves(4, Layout::nhwc, true);
  const Tensor residual = leaves.like_result(4);
  const Tensor y = leaves.run({.residual = residual.to(Layout::nchw), .relu = true});
  CHECK(y.layout() == Layout::nhwc);
  CHECK(y.to_vector<float>() == leaves.run({.residual = residual, .relu = true}).to_vector<float>());
}

TEST_CASE("changing the output of a fused ReLU in place makes its backward an error") {
  for (const int rank : {4, 2}) {
    const Leaves leaves(rank, Layout::nhwc, true);
    Tensor y = leaves.run({.relu = true});
    const Tensor loss = sum(y);
    {
      const NoGrad no_grad;
      y.zero_();
    }
    CHECK_THROWS_WITH_AS(loss.backward(), doctest::Contains("'fill_' changed it"), AutogradError);
  }
}

TEST_CASE("an activation that does not fit a convolution or linear is an error") {
  for_leaves([](const Leaves& leaves, const Leaves&) {
    const Tensor other = Tensor::zeros({2, 5});
    CHECK_THROWS_WITH_AS(leaves.run({.residual = other}), doctest::Contains("residual f32[2,5]"), ShapeError);
    CHECK_THROWS_AS(leaves.run({.residual = leaves.like_result(1).to(DType::f64)}), DtypeError);
    CHECK_THROWS_WITH_AS(leaves.run({.relu = true, .ceiling = 0}), doctest::Contains("ceiling 0"), UsageError);
  });
}

TEST_CASE("a fused ReLU over an empty batch gives gradients of zero") {
  Tensor x = Tensor::empty({0, 3}), w = Tensor::ones({2, 3}).requires_grad_(), b = Tensor::ones({2}).requires_grad_();
  const Tensor y = linear(x, w, b, {.relu = true});
  y.backward(Tensor::empty(y.shape()));
  CHECK(w.grad().to_vector<float>() == Floats(6, 0.0f));
  CHECK(b.grad().to_vector<float>() == Floats(2, 0.0f));
}

TEST_CASE("Conv2d's and Linear's relu() equal the layer and its ReLU, and are observed once") {
  nn::Conv2d conv(4, 6, {.kernel = 3, .stride = 2, .padding = 1});
  nn::Linear linear_layer(12, 5);
  const Tensor image = formula_tensor({2, 4, 7, 5}, {.seed = 1}), row = formula_tensor({3, 12}, {.seed = 2});
  const Floats of_conv = relu(conv(image)).to_vector<float>(), of_linear = relu(linear_layer(row)).to_vector<float>();
  std::vector<Floats> seen;
  const nn::ObserverScope scope([&](nn::Module&, const Tensor& output) { seen.push_back(output.to_vector<float>()); });
  CHECK(conv.relu(image).to_vector<float>() == of_conv);
  CHECK(linear_layer.relu(row).to_vector<float>() == of_linear);
  CHECK(seen == std::vector<Floats>{of_conv, of_linear});
}

TEST_CASE("LeNet gives the bits of its layers and ReLUs one after the other") {
  const std::unique_ptr<nn::Module> net = models::find("lenet").make(1, 12, 10);
  std::map<std::string, Tensor> p;
  for (const nn::NamedTensor& t : net->named_parameters()) p[t.name] = t.tensor;
  const Tensor x = formula_tensor({5, 1, 12, 12}, {.seed = 1}), dy = formula_tensor({5, 10}, {.seed = 2});
  const auto gradients = [&](const Tensor& y) {
    y.backward(dy);
    std::vector<Floats> all{y.to_vector<float>()};
    for (auto& [name, t] : p) all.push_back(t.grad().to_vector<float>());
    net->zero_grad();
    return all;
  };
  const auto apart = [&] {
    Tensor h = max_pool2d(relu_(conv2d(x, p["conv1.weight"], p["conv1.bias"], {.padding = 1})), {.kernel = 2});
    h = max_pool2d(relu_(conv2d(h, p["conv2.weight"], p["conv2.bias"], {.padding = 1})), {.kernel = 2});
    h = relu_(linear(flatten(h), p["fc1.weight"], p["fc1.bias"]));
    return linear(h, p["fc2.weight"], p["fc2.bias"]);
  };
  CHECK(gradients((*net)(x)) == gradients(apart()));
}
