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
/// the first layer whose output has one, the loss, or the first parameter whose gradient has one. Runs the forward pass
/// of the window again (which may spoil running statistics).
std::string first_non_finite(nn::Module& module, const Window& window);

/// "'fc1.bias' holds 3 NaN or infinite values" for the first parameter or buffer that has any.
std::optional<std::string> first_non_finite_weight(const std::vector<nn::NamedTensor>& state);
std::optional<std::string> first_non_finite_weight(const nn::Module& module);

}  // namespace cuttle::train
