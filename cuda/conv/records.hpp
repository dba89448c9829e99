#pragma once
#include "cuda/conv/choose.hpp"

namespace cuttle::cuda {

/// All that decides a convolution but how it is chosen: policy, names, what the policy may use and the workspace limit.
/// Plans are looked up by it.
ConvKey without_choice(ConvKey key);

/// A choice as an entry of a plan file.
ConvPlan plan_of(const ConvKey& key, const Chosen& chosen);

/// Backend::conv_plans.
ConvPlans conv_plans(int index);

}  // namespace cuttle::cuda
