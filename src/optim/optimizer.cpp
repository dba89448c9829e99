#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <unordered_set>

#include "autograd/copy.hpp"
#include "autograd/node.hpp"
#include "cuttle/error.hpp"
#include "cuttle/optim.hpp"
#include "kernels.hpp"

namespace cuttle::optim {
namespace {

void check_rate(const std::string& optimizer, const char* what, double value) {
  if (std::isfinite(value) && value >= 0) return;
  throw UsageError(fmt::format("{}: {} = {} must be a finite number of at least 0", optimizer, what, value));
}

void check_parameters(const std::string& optimizer, const std::vector<Tensor>& params) {
  if (params.empty()) throw UsageError(optimizer + ": there are no parameters to optimize", "pass model.parameters()");
  std::unordered_set<const TensorImpl*> seen;
  for (std::size_t i = 0; i < params.size(); ++i) {
    const Tensor& p = params[i];
    if (!p.defined()) throw UsageError(fmt::format("{}: parameter {} is an undefined tensor", optimizer, i));
    if (!p.is_leaf()) {
      throw UsageError(fmt::format("{}: parameter {}, {}, is the result of an op, not a leaf", optimizer, i, p.str()),
                       "gradients reach leaves only: pass model.parameters()");
    }
    if (!seen.insert(p.impl()).second) {
      throw UsageError(fmt::format("{}: parameter {}, {}, is listed twice and would be updated twice a step", optimizer,
                                   i, p.str()));
    }
  }
}

/// The same values where `parameter` has its own, in the same order.
Tensor placed_as(const Tensor& t, const Tensor& parameter) {
  const Tensor placed = t.to(parameter.device());
  return placed.rank() == 4 ? placed.to(parameter.layout()) : placed;
}

/// The same values where and how `parameter` has its own.
Tensor placed_like(const Tensor& t, const Tensor& parameter) { return placed_as(t, parameter).to(parameter.dtype()); }

/// Kernels read gradients of 16 bits as they are.
Tensor placed_gradient(const Tensor& parameter) {
  const Tensor g = placed_as(parameter.grad(), parameter);
  const bool low = g.dtype() == DType::f16 || g.dtype() == DType::bf16;
  return low ? g : g.to(parameter.dtype());
}

bool has_gradient(const Tensor& parameter) { return parameter.grad().defined() && parameter.numel() > 0; }

}  // namespace

Optimizer::Optimizer(const char* name, std::vector<Tensor> parameters, double lr, double weight_decay,
                     bool decay_norm_and_bias, std::vector<std::string> state_names)
    : name_(name), params_(std::move(parameters)), lr_(lr) {
  check_parameters(name_, params_);
  check_rate(name_, "lr", lr);
  check_rate(name_, "weight_decay", weight_decay);
  for (const Tensor& p : params_) decay_.push_back(decay_norm_and_bias || p.rank() > 1 ? weight_decay : 0.0);
  for (std::string& state : state_names) states_.push_back({std::move(state), std::vector<Tensor>(params_.size())});
  const Device device = params_.front().device();
  lr_tensor_ = Tensor::scalar(lr, {.device = device});
  Cohort everyone{std::vector<std::size_t>(params_.size()), Tensor::zeros({}, {.dtype = DType::i64, .device = device})};
  std::iota(everyone.members.begin(), everyone.members.end(), std::size_t{0});
  cohorts_.push_back(std::move(everyone));
}

void Optimizer::set_lr(double lr) {
  check_rate(name_, "lr", lr);
  if (lr != lr_) lr_tensor_.fill_(lr);
  lr_ = lr;
}

void Optimizer::zero_grad() {
  for (Tensor& p : params_) p.set_grad({});
}

void Optimizer::check_devices() const {
  for (const Tensor& p : params_) {
    if (p.device() != params_.front().device()) {
      throw DeviceError(
          fmt::format("{}: parameters lie on {} and {}", name_, params_.front().device().str(), p.device().str()),
          "move the whole model with model.to(device)");
    }
  }
}

void Optimizer::follow_parameters() {
  const Device device = params_.front().device();
  lr_tensor_ = lr_tensor_.to(device);
  for (Cohort& cohort : cohorts_) cohort.step = cohort.step.to(device);
  for (StateList& list : states_) {
    for (std::size_t i = 0; i < params_.size(); ++i) {
      if (list.tensors[i].defined()) list.tensors[i] = placed_like(list.tensors[i], params_[i]);
    }
  }
}

/// Members that get no update this time fall behind the rest of their cohort, for good.
void Optimizer::split_cohorts() {
  const std::size_t count = cohorts_.size();
  for (std::size_t c = 0; c < count; ++c) {
    std::vector<std::size_t>& members = cohorts_[c].members;
    const auto behind =
        std::stable_partition(members.begin(), members.end(), [&](std::size_t i) { return has_gradient(params_[i]); });
    if (behind == members.begin() || behind == members.end()) continue;
    Cohort late{{behind, members.end()}, cohorts_[c].step.clone()};
    members.erase(behind, members.end());
    cohorts_.push_back(std::move(late));
  }
}

Optimizer::Group Optimizer::group_of(const Cohort& cohort) {
  Group group;
  group.step = cohort.step;
  group.states.resize(states_.size());
  for (const std::size_t i : cohort.members) {
    const Tensor& p = params_[i];
    group.params.push_back(p);
    group.grads.push_back(placed_gradient(p));
    group.copies.push_back(autograd::current_copy(p));
    group.decay.push_back(decay_[i]);
    for (std::size_t s = 0; s < states_.size(); ++s) {
      Tensor& state = states_[s].tensors[i];
      if (!state.defined()) state = Tensor::zeros(p.shape(), p.options());
      group.states[s].push_back(state);
    }
  }
  return group;
}

void Optimizer::check_factor(const Tensor& factor) const {
  if (!factor.defined()) return;
  if (factor.dtype() != DType::f32 || factor.rank() != 0) {
    throw DtypeError(fmt::format("{}: the factor of the gradients is {}, not an f32 scalar", name_, factor.str()));
  }
  if (factor.device() != params_.front().device()) {
    throw DeviceError(fmt::format("{}: the factor of the gradients lies on {}, the parameters on {}", name_,
                                  factor.device().str(), params_.front().device().str()));
  }
}

void Optimizer::step(const Tensor& factor) {
  const NoGrad no_grad;
  check_devices();
  check_factor(factor);
  follow_parameters();
  split_cohorts();
  // Every allocation comes first: a step that runs out of memory has changed nothing.
  std::vector<Group> groups;
  for (const Cohort& cohort : cohorts_) {
    if (has_gradient(params_[cohort.members.front()])) groups.push_back(group_of(cohort));
  }
  for (Group& group : groups) {
    group.factor = factor;
    update(group);
    for (std::size_t i = 0; i < group.params.size(); ++i) {
      autograd::mark_changed(name_, group.params[i]);
      if (!group.copies[i].defined()) continue;
      autograd::mark_changed(name_, group.copies[i]);
      autograd::copy_rewritten(group.params[i]);
    }
  }
  ++steps_;
}

}  // namespace cuttle::optim
