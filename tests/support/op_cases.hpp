#pragma once
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuttle/ops.hpp"
#include "support/formula.hpp"
#include "support/source_folder.hpp"

/// The table of ops and shapes in tests/golden/ops.json as functions to call: golden values, finite differences and
/// the comparison of backends all run over the same cases.
namespace cuttle::testing {

using Json = nlohmann::json;
using Inputs = std::map<std::string, Tensor>;

inline std::string golden_path(const std::string& file) { return source_folder() + "/tests/golden/" + file; }

inline Json read_golden_json(const std::string& file) {
  std::ifstream in(golden_path(file));
  if (!in) throw std::runtime_error("cannot read " + golden_path(file));
  return Json::parse(in);
}

inline Shape shape_from(const Json& sizes) {
  const auto list = sizes.get<std::vector<std::int64_t>>();
  return Shape(std::span<const std::int64_t>(list));
}

inline Formula formula_from(const Json& spec) {
  return {spec.at("seed"), spec.value("scale", 1.0), spec.value("shift", 0.0), spec.value("coarse", false)};
}

inline Tensor input_from(const Json& spec, TensorOptions options) {
  const Shape shape = shape_from(spec.at("shape"));
  if (spec.contains("classes")) {
    return formula_targets(shape.numel(), spec.at("classes"), spec.at("seed")).to(options.device);
  }
  return formula_tensor(shape, formula_from(spec), options);
}

/// All inputs of a case; those that are differentiated are leaves that ask for a gradient.
inline Inputs inputs_from(const Json& op_case, TensorOptions options) {
  Inputs inputs;
  for (const Json& spec : op_case.at("inputs")) {
    Tensor input = input_from(spec, options);
    if (spec.value("grad", false)) input.requires_grad_();
    inputs[spec.at("name")] = input;
  }
  return inputs;
}

inline Size2 size2_from(const Json& pair) { return {pair.at(0).get<std::int64_t>(), pair.at(1).get<std::int64_t>()}; }

inline Tensor optional_input(const Inputs& inputs, const std::string& name) {
  const auto found = inputs.find(name);
  return found == inputs.end() ? Tensor() : found->second;
}

inline Activation activation_from(const Inputs& in, const Json& o) {
  Activation then{.residual = optional_input(in, "residual"), .relu = o.contains("then")};
  if (o.value("then", "") == "relu6") then.ceiling = 6;
  return then;
}

inline Tensor run_conv2d(const Inputs& in, const Json& o) {
  const Conv2dOptions options{size2_from(o.at("stride")), size2_from(o.at("padding")), size2_from(o.at("dilation")),
                              o.at("groups").get<std::int64_t>()};
  return conv2d(in.at("x"), in.at("weight"), optional_input(in, "bias"), options, activation_from(in, o));
}

inline Pool2dOptions pool_options(const Json& o) {
  Pool2dOptions options;
  options.kernel = size2_from(o.at("kernel"));
  options.stride = size2_from(o.at("stride"));
  options.padding = size2_from(o.at("padding"));
  options.ceil_mode = o.at("ceil_mode");
  if (o.contains("dilation")) options.dilation = size2_from(o.at("dilation"));
  options.count_include_pad = o.value("count_include_pad", true);
  return options;
}

inline Tensor run_batch_norm2d(const Inputs& in, const Json& o) {
  return batch_norm2d(in.at("x"), optional_input(in, "weight"), optional_input(in, "bias"),
                      optional_input(in, "running_mean"), optional_input(in, "running_var"),
                      {.training = o.at("training"), .momentum = o.at("momentum"), .eps = o.at("eps")},
                      activation_from(in, o));
}

inline Tensor run_linear(const Inputs& in, const Json& o) {
  return linear(in.at("x"), in.at("weight"), optional_input(in, "bias"), activation_from(in, o));
}

inline Tensor run_cross_entropy(const Inputs& in, const Json& o) {
  const Reduction reduction = o.at("reduction") == "sum" ? Reduction::sum : Reduction::mean;
  return cross_entropy(in.at("x"), in.at("targets"),
                       {.label_smoothing = o.at("label_smoothing"), .reduction = reduction});
}

inline Tensor run_reshape(const Inputs& in, const Json& o) {
  const auto sizes = o.at("shape").get<std::vector<std::int64_t>>();
  // Only the overload for lists of sizes takes -1.
  if (sizes.size() == 2) return in.at("x").reshape({sizes[0], sizes[1]});
  return in.at("x").reshape(Shape(std::span<const std::int64_t>(sizes)));
}

/// Runs the op of a case. The twin of OPS in tests/golden/op_cases.py.
inline Tensor run_op(const std::string& op, const Inputs& in, const Json& o) {
  using Run = std::function<Tensor(const Inputs&, const Json&)>;
  static const std::map<std::string, Run> ops{
      {"conv2d", run_conv2d},
      {"linear", run_linear},
      {"max_pool2d", [](auto& in, auto& o) { return max_pool2d(in.at("x"), pool_options(o)); }},
      {"avg_pool2d", [](auto& in, auto& o) { return avg_pool2d(in.at("x"), pool_options(o)); }},
      {"adaptive_avg_pool2d",
       [](auto& in, auto& o) { return adaptive_avg_pool2d(in.at("x"), size2_from(o.at("output"))); }},
      {"global_avg_pool2d", [](auto& in, auto&) { return global_avg_pool2d(in.at("x")); }},
      {"relu", [](auto& in, auto&) { return relu(in.at("x")); }},
      {"relu_", [](auto& in, auto&) { return relu_(in.at("x").clone()); }},
      {"relu6", [](auto& in, auto&) { return relu6(in.at("x")); }},
      {"relu6_", [](auto& in, auto&) { return relu6_(in.at("x").clone()); }},
      {"add", [](auto& in, auto&) { return add(in.at("a"), in.at("b")); }},
      {"add_", [](auto& in, auto&) { return add_(in.at("a").clone(), in.at("b")); }},
      {"mul", [](auto& in, auto& o) { return mul(in.at("x"), o.at("factor").template get<double>()); }},
      {"sum", [](auto& in, auto&) { return sum(in.at("x")); }},
      {"mean", [](auto& in, auto&) { return mean(in.at("x")); }},
      {"batch_norm2d", run_batch_norm2d},
      {"flatten", [](auto& in, auto& o) { return flatten(in.at("x"), o.at("start").template get<int>()); }},
      {"reshape", run_reshape},
      {"slice", [](auto& in, auto& o) { return in.at("x").slice(o.at("begin"), o.at("end")); }},
      {"clone", [](auto& in, auto&) { return in.at("x").clone(); }},
      {"log_softmax", [](auto& in, auto&) { return log_softmax(in.at("x")); }},
      {"softmax", [](auto& in, auto&) { return softmax(in.at("x")); }},
      {"cross_entropy", run_cross_entropy},
  };
  return ops.at(op)(in, o);
}

}  // namespace cuttle::testing
