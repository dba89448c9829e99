#include <doctest/doctest.h>
#include <algorithm>

#include "support/golden.hpp"

using namespace cuttle;
using namespace cuttle::testing;

namespace {

void check_case(const GoldenValues& golden, const Json& op_case, TensorOptions options) {
  CAPTURE(op_case.at("name").get<std::string>());
  CAPTURE(name_of(options.dtype));
  CAPTURE(name_of(options.layout));
  const Inputs inputs = inputs_from(op_case, options);
  const Tensor output = run_op(op_case.at("op"), inputs, op_case.at("options"));
  output.backward(input_from(op_case.at("gradient"), options));
  for (const Json& record : op_case.at("expected")) {
    const std::string name = record.at("name");
    CAPTURE(name);
    CHECK(golden.error_of(result_named(name, output, inputs), record) < 1e-5);
  }
}

void check_family(const std::string& op) {
  static const Json cases = read_golden_json("ops.json").at("cases");
  static const GoldenValues golden;
  int checked = 0;
  for (const Json& op_case : cases) {
    if (op_case.at("op") != op) continue;
    ++checked;
    for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
      for (const DType dtype : {DType::f32, DType::f64}) {
        check_case(golden, op_case, {.dtype = dtype, .layout = layout});
      }
    }
  }
  CHECK(checked > 0);
}

}  // namespace

TEST_CASE("conv2d and its gradients equal PyTorch's") { check_family("conv2d"); }
TEST_CASE("linear and its gradients equal PyTorch's") { check_family("linear"); }
TEST_CASE("max_pool2d and its gradient equal PyTorch's") { check_family("max_pool2d"); }
TEST_CASE("avg_pool2d and its gradient equal PyTorch's") { check_family("avg_pool2d"); }
TEST_CASE("adaptive and global average pooling and their gradients equal PyTorch's") {
  check_family("adaptive_avg_pool2d");
  check_family("global_avg_pool2d");
}
TEST_CASE("relu, relu6, add and their in-place forms equal PyTorch's") {
  for (const char* op : {"relu", "relu_", "relu6", "relu6_", "add", "add_"}) check_family(op);
}
TEST_CASE("mul, sum and mean equal PyTorch's") {
  for (const char* op : {"mul", "sum", "mean"}) check_family(op);
}
TEST_CASE("batch_norm2d, its gradients and running statistics equal PyTorch's") { check_family("batch_norm2d"); }
TEST_CASE("flatten, reshape, slice and clone equal PyTorch's") {
  for (const char* op : {"flatten", "reshape", "slice", "clone"}) check_family(op);
}
TEST_CASE("log_softmax and softmax equal PyTorch's") {
  for (const char* op : {"log_softmax", "softmax"}) check_family(op);
}
TEST_CASE("cross_entropy equals PyTorch's with smoothing, mean and sum") { check_family("cross_entropy"); }

TEST_CASE("every golden case belongs to a family that is checked") {
  const Json cases = read_golden_json("ops.json").at("cases");
  const std::vector<std::string> families{"conv2d",
                                          "linear",
                                          "max_pool2d",
                                          "avg_pool2d",
                                          "adaptive_avg_pool2d",
                                          "global_avg_pool2d",
                                          "relu",
                                          "relu_",
                                          "relu6",
                                          "relu6_",
                                          "add",
                                          "add_",
                                          "mul",
                                          "sum",
                                          "mean",
                                          "batch_norm2d",
                                          "flatten",
                                          "reshape",
                                          "slice",
                                          "clone",
                                          "log_softmax",
                                          "softmax",
                                          "cross_entropy"};
  for (const Json& op_case : cases) CHECK(std::ranges::count(families, op_case.at("op").get<std::string>()) == 1);
}

TEST_CASE("a gradient is the same whichever others are wanted with it") {
  const Json cases = read_golden_json("ops.json").at("cases");
  const GoldenValues golden;
  for (const Json& op_case : cases) {
    if (op_case.at("inputs").size() < 2) continue;
    CAPTURE(op_case.at("name").get<std::string>());
    for (const Json& wanted : op_case.at("inputs")) {
      if (!wanted.value("grad", false)) continue;
      Inputs inputs = inputs_from(op_case, {});
      for (auto& [name, input] : inputs) {
        if (input.requires_grad() && name != wanted.at("name")) input.requires_grad_(false);
      }
      run_op(op_case.at("op"), inputs, op_case.at("options")).backward(input_from(op_case.at("gradient"), {}));
      for (const Json& record : op_case.at("expected")) {
        const std::string name = record.at("name");
        if (!name.starts_with("grad ")) continue;
        const Tensor grad = result_named(name, {}, inputs);
        if (name == "grad " + wanted.at("name").get<std::string>()) {
          CHECK(golden.error_of(grad, record) < 1e-5);
        } else {
          CHECK_FALSE(grad.defined());
        }
      }
    }
  }
}

TEST_CASE("the gradients of two backward passes add up") {
  const Json cases = read_golden_json("ops.json").at("cases");
  for (const Json& op_case : cases) {
    CAPTURE(op_case.at("name").get<std::string>());
    const Tensor gradient = input_from(op_case.at("gradient"), {});
    Inputs inputs = inputs_from(op_case, {});
    std::map<std::string, std::vector<double>> once;
    for (int pass = 0; pass < 2; ++pass) {
      run_op(op_case.at("op"), inputs, op_case.at("options")).backward(gradient);
      for (auto& [name, input] : inputs) {
        if (!input.requires_grad()) continue;
        const std::vector<double> now = input.grad().to_vector<double>();
        if (pass == 0) once[name] = now;
        if (pass == 1) {
          std::vector<double> twice = once[name];
          for (double& value : twice) value *= 2;
          CHECK(relative_error(now, twice) < 1e-6);
        }
      }
    }
  }
}
