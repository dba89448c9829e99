#include <doctest/doctest.h>

#include <set>
#include <string>

#include "cuttle/conv.hpp"
#include "support/golden.hpp"
#include "support/lenet_curve.hpp"

using namespace cuttle;
using namespace cuttle::testing;

namespace {

constexpr Device kCuda{DeviceKind::cuda, 0};

/// Ops whose vectors stay f32 whatever the activations are.
bool is_wide(const std::string& op, const Json& input) {
  return op == "batch_norm2d" && input.at("name") != "x" && input.at("name") != "residual";
}

Inputs inputs_on(const Json& op_case, DType dtype, DType wide, DType rounded_to, Device device, Layout layout) {
  Inputs inputs;
  for (const Json& spec : op_case.at("inputs")) {
    const bool keep = is_wide(op_case.at("op"), spec);
    Tensor input = input_from(spec, {.dtype = DType::f64, .layout = layout});
    if (is_floating(input.dtype())) {
      if (!keep) input = input.to(rounded_to);
      input = input.to(keep ? wide : dtype);
    }
    input = input.to(device);
    if (input.rank() == 4) input = input.to(layout);
    if (spec.value("grad", false)) input.requires_grad_();
    inputs[spec.at("name")] = input;
  }
  return inputs;
}

Tensor gradient_on(const Json& op_case, const Tensor& output, DType rounded_to) {
  const Tensor gradient = input_from(op_case.at("gradient"), {.dtype = DType::f64, .layout = output.layout()});
  return gradient.to(rounded_to).to(output.dtype()).to(output.device());
}

/// 16-bit results against the CPU's in f64 from the same rounded inputs.
void check_narrow(const Json& op_case, DType dtype, Layout layout, double tolerance) {
  const std::string op = op_case.at("op");
  CAPTURE(op_case.at("name").get<std::string>());
  CAPTURE(name_of(dtype));
  CAPTURE(name_of(layout));
  const Inputs exact = inputs_on(op_case, DType::f64, DType::f64, dtype, kCpu, layout);
  const Inputs narrow = inputs_on(op_case, dtype, DType::f32, dtype, kCuda, layout);
  const Tensor expected = run_op(op, exact, op_case.at("options"));
  const Tensor output = run_op(op, narrow, op_case.at("options"));
  expected.backward(gradient_on(op_case, expected, dtype));
  output.backward(gradient_on(op_case, output, dtype));
  CHECK(relative_error(output, expected) < tolerance);
  for (const Json& spec : op_case.at("inputs")) {
    const std::string name = spec.at("name");
    CAPTURE(name);
    if (spec.value("grad", false)) CHECK(relative_error(narrow.at(name).grad(), exact.at(name).grad()) < tolerance);
    if (spec.value("changes", false)) CHECK(relative_error(narrow.at(name), exact.at(name)) < tolerance);
  }
}

const Json& cases() {
  static const Json list = read_golden_json("ops.json").at("cases");
  return list;
}

struct PathScope {
  explicit PathScope(ConvPolicy path) : before(conv_settings()) {
    ConvSettings settings = before;
    settings.policy = path;
    set_conv_settings(settings);
  }
  ~PathScope() { set_conv_settings(before); }
  ConvSettings before;
};

void check_f32(const Json& op_case) {
  static const GoldenValues golden;
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
    CAPTURE(op_case.at("name").get<std::string>());
    CAPTURE(name_of(layout));
    const Inputs inputs = inputs_from(op_case, {.device = kCuda, .layout = layout});
    const Tensor output = run_op(op_case.at("op"), inputs, op_case.at("options"));
    output.backward(input_from(op_case.at("gradient"), {.device = kCuda, .layout = layout}));
    for (const Json& record : op_case.at("expected")) {
      const std::string name = record.at("name");
      CAPTURE(name);
      CHECK(golden.error_of(result_named(name, output, inputs), record) < 1e-5);
    }
  }
}

/// A shape is measured when it comes for the second time.
int times(ConvPolicy policy) { return policy == ConvPolicy::measure ? 2 : 1; }

}  // namespace

TEST_CASE("cuda: every op and its gradients equal PyTorch's in f32") {
  for (const Json& op_case : cases()) check_f32(op_case);
}

TEST_CASE("cuda: convolutions equal PyTorch's in f32 on every path") {
  for (const ConvPolicy path : {ConvPolicy::measure, ConvPolicy::legacy, ConvPolicy::gemm}) {
    const PathScope scope(path);
    CAPTURE(static_cast<int>(path));
    for (const Json& op_case : cases()) {
      if (op_case.at("op") != "conv2d") continue;
      for (int i = 0; i < times(path); ++i) check_f32(op_case);
    }
  }
}

TEST_CASE("cuda: every op and its gradients are right in f16 and bf16") {
  for (const Json& op_case : cases()) {
    // The gradient of log_softmax and softmax is computed from the rounded output.
    const std::string op = op_case.at("op");
    const double factor = op == "log_softmax" || op == "softmax" ? 4 : 1;
    for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
      check_narrow(op_case, DType::f16, layout, factor * 2e-3);
      check_narrow(op_case, DType::bf16, layout, factor * 1.6e-2);
    }
  }
}

TEST_CASE("cuda: convolutions are right in f16 on every path") {
  for (const ConvPolicy path : {ConvPolicy::measure, ConvPolicy::legacy, ConvPolicy::gemm}) {
    const PathScope scope(path);
    CAPTURE(static_cast<int>(path));
    for (const Json& op_case : cases()) {
      if (op_case.at("op") != "conv2d") continue;
      for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
        for (int i = 0; i < times(path); ++i) check_narrow(op_case, DType::f16, layout, 2e-3);
      }
    }
  }
}

TEST_CASE("cuda: fifty steps of LeNet on MNIST follow PyTorch's loss curve in either layout") {
  const Json lists = read_golden_json("train.json");
  for (const Layout layout : {Layout::nhwc, Layout::nchw}) check_lenet_curve(lists.at("lenet")[0], kCuda, layout);
}
