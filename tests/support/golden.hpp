#pragma once
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "support/close.hpp"
#include "support/op_cases.hpp"

/// What PyTorch computes for the cases of tests/golden/ops.json.
namespace cuttle::testing {

/// The results in ops.f32, found by their offset.
class GoldenValues {
 public:
  GoldenValues() {
    const std::string file = golden_path("ops.f32");
    values_.resize(std::filesystem::file_size(file) / sizeof(float));
    std::ifstream in(file, std::ios::binary);
    in.read(reinterpret_cast<char*>(values_.data()), static_cast<std::streamsize>(values_.size() * sizeof(float)));
  }

  /// Relative error of t against the record of an expected tensor; infinite where the shapes differ.
  double error_of(const Tensor& t, const Json& record) const {
    const Shape shape = shape_from(record.at("shape"));
    if (!t.defined() || t.shape() != shape) return std::numeric_limits<double>::infinity();
    const bool sketched = record.at("sketch");
    const std::size_t count = sketched ? 33 : static_cast<std::size_t>(shape.numel());
    const auto begin = values_.begin() + record.at("at").get<std::ptrdiff_t>();
    const std::vector<double> expected(begin, begin + static_cast<std::ptrdiff_t>(count));
    const std::vector<double> values = t.to_vector<double>();
    return sketched ? relative_error_to_sketch(values, expected) : relative_error(values, expected);
  }

 private:
  std::vector<float> values_;
};

/// "output", "grad x" or "after running_mean".
inline Tensor result_named(const std::string& name, const Tensor& output, const Inputs& inputs) {
  if (name == "output") return output;
  const Tensor& input = inputs.at(name.substr(name.find(' ') + 1));
  return name.starts_with("grad ") ? input.grad() : input;
}

}  // namespace cuttle::testing
