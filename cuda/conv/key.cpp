#include "cuda/conv/key.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>

namespace cuttle::cuda {

namespace {

void put(std::int64_t (&to)[4], const Tensor& t) { std::copy(t.shape().begin(), t.shape().end(), to); }
void put(std::int64_t (&to)[2], Size2 size) {
  to[0] = size.h;
  to[1] = size.w;
}

/// The largest power of two up to 16 that divides the address: slices of a batch may start anywhere.
std::int64_t alignment_of(const Tensor& t) {
  const auto address = reinterpret_cast<std::uintptr_t>(t.raw_data());
  return address % 16 == 0 ? 16 : static_cast<std::int64_t>(address & (~address + 1));
}

/// Lists of names that were asked for: a key holds the number of one. They are few, and stay.
class NameLists {
 public:
  std::int64_t number_of(Pass pass, const std::string& list) {
    const std::lock_guard lock(mutex_);
    const auto [at, is_new] = numbers_.try_emplace({pass, list}, static_cast<std::int64_t>(lists_.size()));
    if (is_new) lists_.push_back(parse_choices(pass, list));
    return at->second;
  }
  const std::vector<std::string>& at(std::int64_t number) {
    const std::lock_guard lock(mutex_);
    return lists_[static_cast<std::size_t>(number)];
  }

 private:
  std::mutex mutex_;
  std::deque<std::vector<std::string>> lists_{{"auto"}};  // references to its elements stay valid
  std::map<std::pair<Pass, std::string>, std::int64_t> numbers_;
};

NameLists& name_lists() {
  static auto& lists = *new NameLists;
  return lists;
}

/// Empty lists, which nearly all are, cost no look-up.
std::int64_t number_of(Pass pass, const std::string& list) {
  return list.empty() ? 0 : name_lists().number_of(pass, list);
}

}  // namespace

const std::vector<std::string>& ConvKey::names() const { return name_lists().at(choice); }

ConvKey conv_key(const ConvSettings& settings, Pass pass, const ConvOperands& operands, const Conv2dOptions& options,
                 bool accumulate, bool relu) {
  ConvKey key{};
  key.device = operands.a.device().index;
  key.pass = static_cast<std::int64_t>(pass);
  key.dtype = static_cast<std::int64_t>(operands.a.dtype());
  key.layout = static_cast<std::int64_t>(operands.a.layout());
  put(key.x, pass == Pass::forward ? operands.a : pass == Pass::backward_data ? operands.out : operands.b);
  put(key.w, pass == Pass::backward_filter ? operands.out : operands.b);
  put(key.y, pass == Pass::forward ? operands.out : operands.a);
  put(key.stride, options.stride);
  put(key.padding, options.padding);
  put(key.dilation, options.dilation);
  key.groups = options.groups;
  key.bias = operands.bias.defined();
  key.relu = relu;
  key.accumulate = accumulate;
  key.alignment = std::min({alignment_of(operands.a), alignment_of(operands.b), alignment_of(operands.out)});
  if (operands.bias.defined()) key.alignment = std::min(key.alignment, alignment_of(operands.bias));
  key.policy = static_cast<std::int64_t>(settings.policy);
  if (settings.policy == ConvPolicy::measure) key.measure_limit = settings.measure_limit;
  key.cudnn = settings.cudnn;
  key.tf32 = settings.tf32;
  key.deterministic = settings.deterministic;
  key.workspace_limit = settings.workspace_limit ? static_cast<std::int64_t>(*settings.workspace_limit) : -1;
  key.reduced_precision = settings.reduced_precision_accumulation;
  if (options.choice) key.choice = number_of(pass, options.choice->wanted().of(pass));
  return key;
}

std::string describe(const ConvKey& key) {
  constexpr const char* kPasses[] = {"forward", "backward data", "backward filter"};
  return fmt::format("conv2d {} {} {} x[{}] w[{}] stride {} padding {} dilation {} groups {}{}{}{}", kPasses[key.pass],
                     name_of(key.type()), name_of(key.order()), fmt::join(key.x, ","), fmt::join(key.w, ","),
                     fmt::join(key.stride, "x"), fmt::join(key.padding, "x"), fmt::join(key.dilation, "x"), key.groups,
                     key.bias ? " + bias" : "", key.relu ? " + ReLU" : "", key.accumulate ? ", added to dw" : "");
}

}  // namespace cuttle::cuda
