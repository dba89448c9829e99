#include <fmt/format.h>

#include <map>

#include "cuttle/autograd.hpp"
#include "cuttle/error.hpp"
#include "cuttle/optim.hpp"
#include "nn/state_match.hpp"

namespace cuttle::optim {
namespace {

std::string numbered(const std::string& name, std::size_t i) { return fmt::format("{}.{}", name, i); }

}  // namespace

std::vector<nn::NamedTensor> Optimizer::state() const {
  std::vector<std::int64_t> updates(params_.size());
  for (const Cohort& cohort : cohorts_) {
    const auto count = cohort.step.item<std::int64_t>();
    for (const std::size_t i : cohort.members) updates[i] = count;
  }
  std::vector<nn::NamedTensor> state{
      {"step", Tensor::from<std::int64_t>({steps_}, {})},
      {"updates", Tensor::from(updates, {static_cast<std::int64_t>(updates.size())})},
  };
  for (const StateList& list : states_) {
    for (std::size_t i = 0; i < params_.size(); ++i) {
      // A skipped first step leaves tensors behind that were never used.
      if (list.tensors[i].defined() && updates[i] > 0)
        state.push_back({numbered(list.name, i), list.tensors[i].clone()});
    }
  }
  return state;
}

void Optimizer::load_state(const std::vector<nn::NamedTensor>& state) {
  const NoGrad no_grad;
  nn::StateMatch match(state);
  const Tensor step = match.take("step", {}, DType::i64);
  const Tensor updates = match.take("updates", {static_cast<std::int64_t>(params_.size())}, DType::i64);
  // Which parameters have a state is known from the counts alone.
  if (!step.defined() || !updates.defined()) match.finish(name_);
  const auto steps = step.item<std::int64_t>();
  const std::vector<std::int64_t> counts = updates.to_vector<std::int64_t>();

  std::vector<StateList> lists;
  for (const StateList& own : states_) {
    StateList list{own.name, std::vector<Tensor>(params_.size())};
    for (std::size_t i = 0; i < params_.size(); ++i) {
      if (counts[i] > 0) list.tensors[i] = match.take(numbered(own.name, i), params_[i].shape(), params_[i].dtype());
    }
    lists.push_back(std::move(list));
  }
  for (std::size_t i = 0; i < params_.size(); ++i) {
    if (counts[i] < 0 || counts[i] > steps) {
      match.note(fmt::format("updates[{}] = {} is not within the {} steps taken", i, counts[i], steps));
    }
  }
  match.finish(name_);

  // Copies: the tensors given may be someone else's, and step() writes to the state.
  for (StateList& list : lists) {
    for (std::size_t i = 0; i < params_.size(); ++i) {
      if (!list.tensors[i].defined()) continue;
      Tensor own = Tensor::empty(params_[i].shape(), params_[i].options());
      own.copy_(list.tensors[i]);
      list.tensors[i] = own;
    }
  }
  std::map<std::int64_t, Cohort> cohorts;
  for (std::size_t i = 0; i < params_.size(); ++i) cohorts[counts[i]].members.push_back(i);
  for (auto& [count, cohort] : cohorts) {
    cohort.step = Tensor::from<std::int64_t>({count}, {}, {.device = params_.front().device()});
  }

  states_ = std::move(lists);
  cohorts_.clear();
  for (auto& [count, cohort] : cohorts) cohorts_.push_back(std::move(cohort));
  steps_ = steps;
}

}  // namespace cuttle::optim
