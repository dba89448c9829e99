#include "train/divergence.hpp"

#include <fmt/format.h>

#include "cuttle/autograd.hpp"
#include "cuttle/ops.hpp"
#include "cuttle/random.hpp"

namespace cuttle::train {
namespace {

std::int64_t non_finite_in(const Tensor& t) {
  // In the dtype of the models: what is finite in a file may overflow there.
  return is_floating(t.dtype()) && t.numel() > 0 ? non_finite_count(t.to(DType::f32)).item<std::int64_t>() : 0;
}

std::string path_of(nn::Module& root, const nn::Module& module) {
  for (const auto& [path, candidate] : root.named_modules()) {
    if (candidate == &module && !path.empty()) return fmt::format("layer '{}' ({})", path, module.kind());
  }
  return fmt::format("the model ({})", module.kind());
}

std::optional<std::string> in_parameters(const nn::Module& module) {
  for (const nn::NamedTensor& p : module.named_parameters()) {
    if (const std::int64_t n = non_finite_in(p.tensor)) {
      return fmt::format("the parameter '{}' already holds {} such value{}", p.name, n, n == 1 ? "" : "s");
    }
  }
  return std::nullopt;
}

std::optional<std::string> in_forward(nn::Module& module, const Tensor& images) {
  if (non_finite_in(images) > 0) return "the images of the batch hold such values";
  std::optional<std::string> found;
  const nn::ObserverScope scope([&](nn::Module& layer, const Tensor& output) {
    if (found) return;
    if (const std::int64_t n = non_finite_in(output)) {
      found = fmt::format("it appears first in {}, in {} of {} outputs", path_of(module, layer), n, output.numel());
    }
  });
  module(images);
  return found;
}

std::optional<std::string> in_gradients(const nn::Module& module) {
  // Backward comes to the last parameters first.
  const std::vector<nn::NamedTensor> parameters = module.named_parameters();
  for (auto p = parameters.rbegin(); p != parameters.rend(); ++p) {
    if (p->tensor.grad().defined() && non_finite_in(p->tensor.grad()) > 0) {
      return fmt::format("the loss is finite, but the gradient of '{}' holds such values", p->name);
    }
  }
  return std::nullopt;
}

}  // namespace

std::string first_non_finite(nn::Module& module, const Window& window, double label_smoothing, double scale) {
  const PhiloxKey before = default_generator().state();
  {
    const NoGrad no_grad;
    if (const auto found = in_parameters(module)) return *found;
    for (std::int64_t b = 0; b < window.batches; ++b) {
      if (const auto found = in_forward(module, window.load(b, {}).images)) return *found;
    }
  }
  // A finite forward pass: the loss or the norm overflowed, or backward did.
  default_generator().set_state(before);
  module.zero_grad();
  Figures figures(window.batches, module.parameters().at(0).device());
  figures.scale.fill_(scale);
  add_gradients(module, window, label_smoothing, figures);
  const NoGrad no_grad;
  return in_gradients(module).value_or(
      "every layer's output is finite, but the loss or the norm of the gradients overflows");
}

std::optional<std::string> first_non_finite_weight(const std::vector<nn::NamedTensor>& state) {
  const NoGrad no_grad;
  for (const nn::NamedTensor& t : state) {
    if (const std::int64_t n = non_finite_in(t.tensor)) {
      return fmt::format("'{}' holds {} NaN or infinite value{}", t.name, n, n == 1 ? "" : "s");
    }
  }
  return std::nullopt;
}

std::optional<std::string> first_non_finite_weight(const nn::Module& module) {
  return first_non_finite_weight(module.state());
}

}  // namespace cuttle::train
