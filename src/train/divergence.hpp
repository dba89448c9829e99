#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cuttle/error.hpp"
#include "cuttle/nn.hpp"
#include "train/step.hpp"

namespace cuttle::train {

/// Where the first NaN or infinity of a step comes from, as a sentence: a parameter that already holds one, the input,
/// the first layer whose output has one, the loss, or the first parameter (backward comes to the last first) whose
/// gradient has one. Runs the window again op by op, with its loss times `scale`, which may spoil running statistics
/// and replaces gradients.
std::string first_non_finite(nn::Module& module, const Window& window, double label_smoothing = 0, double scale = 1);

/// "'fc1.bias' holds 3 NaN or infinite values" for the first parameter or buffer that has any.
std::optional<std::string> first_non_finite_weight(const std::vector<nn::NamedTensor>& state);
std::optional<std::string> first_non_finite_weight(const nn::Module& module);

}  // namespace cuttle::train
