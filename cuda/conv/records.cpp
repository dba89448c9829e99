#include "cuda/conv/records.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cuda/check.hpp"
#include "cuda/conv/plan.hpp"
#include "cuda/runtime/device.hpp"
#include "cuda/runtime/nvml.hpp"
#include "cuttle/error.hpp"

namespace cuttle::cuda {

namespace {

/// "cuDNN 9.19.0", or what is said where it is missing.
std::string library_name() {
  try {
    return "cuDNN " + cudnn_version_text(cudnnGetVersion());
  } catch (const Error&) {
    return "no cuDNN";
  }
}

template <class To, class From> void put(To& to, const From& from) {
  std::copy(std::begin(from), std::end(from), std::begin(to));
}

}  // namespace

ConvKey without_choice(ConvKey key) {
  key.policy = key.measure_limit = key.choice = 0;
  key.cudnn = 1;
  key.workspace_limit = -1;
  return key;
}

ConvPlan plan_of(const ConvKey& key, const Chosen& chosen) {
  ConvPlan plan;
  plan.pass = key.which();
  plan.dtype = key.type();
  plan.layout = key.order();
  put(plan.x, key.x);
  put(plan.w, key.w);
  put(plan.y, key.y);
  put(plan.stride, key.stride);
  put(plan.padding, key.padding);
  put(plan.dilation, key.dilation);
  plan.groups = key.groups;
  plan.bias = key.bias != 0;
  plan.relu = key.relu != 0;
  plan.accumulate = key.accumulate != 0;
  plan.alignment = key.alignment;
  plan.tf32 = key.tf32 != 0;
  plan.deterministic = key.deterministic != 0;
  plan.reduced_precision_accumulation = key.reduced_precision != 0;
  plan.api = chosen.runner->api();
  plan.name = chosen.runner->name();
  plan.fused = chosen.runner->fused();
  plan.workspace_bytes = chosen.runner->workspace_bytes();
  plan.time_us = chosen.time_us;
  return plan;
}

ConvPlans conv_plans(int index) {
  ConvPlans plans{device_name(index), library_name(), nvml_driver_version(), {}};
  std::vector<std::pair<ConvKey, std::size_t>> places;
  for (const auto& [key, chosen] : cached_choices(index)) {
    const ConvKey bare = without_choice(key);
    ConvPlan plan = plan_of(key, chosen);
    // The same convolution under other settings: what was measured says more, then what was used last.
    const auto before = std::ranges::find(places, bare, &std::pair<ConvKey, std::size_t>::first);
    if (before == places.end()) {
      places.emplace_back(bare, plans.plans.size());
      plans.plans.push_back(std::move(plan));
    } else if (ConvPlan& other = plans.plans[before->second]; other.time_us == 0 && plan.time_us > 0) {
      other = std::move(plan);
    }
  }
  return plans;
}

}  // namespace cuttle::cuda
