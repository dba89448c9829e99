#include <doctest/doctest.h>

#include "support/gradcheck.hpp"
#include "support/op_cases.hpp"

using namespace cuttle;
using namespace cuttle::testing;

namespace {

/// The case as a function of its differentiable inputs alone. Running statistics are copied for each call, so that
/// calls do not see each other's updates.
DifferentiableFunction function_of(const Json& op_case, TensorOptions options) {
  return [op_case, options](const std::vector<Tensor>& variables) {
    Inputs inputs = inputs_from(op_case, options);
    std::size_t next = 0;
    for (const Json& spec : op_case.at("inputs")) {
      if (spec.value("grad", false)) inputs[spec.at("name")] = variables[next++];
    }
    return run_op(op_case.at("op"), inputs, op_case.at("options"));
  };
}

std::vector<Tensor> variables_of(const Json& op_case, TensorOptions options) {
  const Inputs inputs = inputs_from(op_case, options);
  std::vector<Tensor> variables;
  for (const Json& spec : op_case.at("inputs")) {
    if (spec.value("grad", false)) variables.push_back(inputs.at(spec.at("name")));
  }
  return variables;
}

Tensor variable(const Shape& shape, std::uint64_t seed, Layout layout) {
  return formula_tensor(shape, {.seed = seed}, {.dtype = DType::f64, .layout = layout}).requires_grad_();
}

}  // namespace

TEST_CASE("gradients of every smooth op case agree with finite differences in both layouts") {
  const Json cases = read_golden_json("ops.json").at("cases");
  for (const Json& op_case : cases) {
    if (!op_case.at("smooth").get<bool>()) continue;
    for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
      CAPTURE(op_case.at("name").get<std::string>());
      CAPTURE(name_of(layout));
      const TensorOptions options{.dtype = DType::f64, .layout = layout};
      // Large inputs cost a whole forward pass an element.
      const auto outputs = shape_from(op_case.at("gradient").at("shape")).numel();
      const GradcheckOptions few{.elements = outputs > 5000 ? 6 : 25};
      CHECK(gradcheck(function_of(op_case, options), variables_of(op_case, options), few) == "");
    }
  }
}

TEST_CASE("the gradient of dropout agrees with finite differences under one mask") {
  const DifferentiableFunction f = [](const std::vector<Tensor>& in) {
    manual_seed(7);
    return dropout(in[0], 0.3);
  };
  for (const Layout layout : {Layout::nhwc, Layout::nchw})
    CHECK(gradcheck(f, {variable({2, 3, 5, 4}, 1, layout)}) == "");
}

TEST_CASE("gradients pass through changes of layout and dtype") {
  const DifferentiableFunction layouts = [](const std::vector<Tensor>& in) {
    return add(in[0], in[0].to(Layout::nchw).to(Layout::nhwc));
  };
  CHECK(gradcheck(layouts, {variable({2, 3, 2, 4}, 1, Layout::nhwc)}) == "");

  Tensor x = formula_tensor({3, 5}, {.seed = 2}).requires_grad_();
  sum(mul(x.to(DType::f64), 3)).backward();
  CHECK(x.grad().dtype() == DType::f32);
  CHECK(x.grad().to_vector<float>() == std::vector<float>(15, 3.0f));
}

TEST_CASE("a weight of the other layout gets its gradient in its own layout") {
  const DifferentiableFunction f = [](const std::vector<Tensor>& in) {
    return conv2d(in[0], in[1], in[2], {.padding = 1});
  };
  CHECK(gradcheck(f, {variable({2, 3, 5, 4}, 1, Layout::nhwc), variable({4, 3, 3, 3}, 2, Layout::nchw),
                      variable({4}, 3, Layout::nhwc)}) == "");
  const DifferentiableFunction sum_of = [](const std::vector<Tensor>& in) { return add(in[0], in[1]); };
  CHECK(gradcheck(sum_of, {variable({2, 3, 5, 4}, 1, Layout::nchw), variable({2, 3, 5, 4}, 2, Layout::nhwc)}) == "");
}

TEST_CASE("gradients through a residual block with in-place ops agree with finite differences") {
  const DifferentiableFunction block = [](const std::vector<Tensor>& in) {
    Tensor h = relu_(batch_norm2d(conv2d(in[0], in[1], {}, {.padding = 1}), in[2], in[3], {}, {}));
    h = add_(conv2d(h, in[1], {}, {.padding = 1}), in[0]);
    return global_avg_pool2d(max_pool2d(relu_(h), {.kernel = 2}));
  };
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    // A short step: one of the 432 values that pass through a ReLU would cross zero in a long one.
    CHECK(gradcheck(block,
                    {variable({2, 3, 6, 6}, 1, layout), variable({3, 3, 3, 3}, 2, layout), variable({3}, 3, layout),
                     variable({3}, 4, layout)},
                    {.step = 1e-7, .tolerance = 1e-6}) == "");
  }
}
