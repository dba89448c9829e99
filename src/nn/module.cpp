#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "cuttle/autograd.hpp"
#include "cuttle/error.hpp"
#include "cuttle/nn.hpp"

namespace cuttle::nn {
namespace {

thread_local Observer* current_observer = nullptr;

void append(std::vector<NamedTensor>& list, const std::string& prefix,
            const std::vector<std::pair<std::string, Tensor*>>& tensors) {
  for (const auto& [name, tensor] : tensors) list.push_back({prefix + name, *tensor});
}

/// Tied weights count once, or an optimizer would step them twice.
std::vector<NamedTensor> without_repeats(std::vector<NamedTensor> list) {
  std::unordered_set<const TensorImpl*> seen;
  std::erase_if(list, [&](const NamedTensor& t) { return !seen.insert(t.tensor.impl()).second; });
  return list;
}

}  // namespace

Tensor Module::operator()(const Tensor& x) { return observed(forward(x)); }

Tensor Module::observed(Tensor output) {
  if (current_observer) (*current_observer)(*this, output);
  return output;
}

/// The prefix of a module's tensors is its path with a dot behind it, empty for the root.
template <class M, class Visit> void Module::visit(M& module, const std::string& prefix, const Visit& visitor) {
  visitor(prefix, module);
  for (const auto& [name, child] : module.children_) visit<M>(*child, prefix + name + ".", visitor);
}

std::vector<NamedTensor> Module::named_parameters() const {
  std::vector<NamedTensor> list;
  visit(*this, "", [&](const std::string& prefix, const Module& m) { append(list, prefix, m.parameters_); });
  return without_repeats(std::move(list));
}

std::vector<NamedTensor> Module::named_buffers() const {
  std::vector<NamedTensor> list;
  visit(*this, "", [&](const std::string& prefix, const Module& m) { append(list, prefix, m.buffers_); });
  return without_repeats(std::move(list));
}

std::vector<NamedTensor> Module::state() const {
  std::vector<NamedTensor> list;
  visit(*this, "", [&](const std::string& prefix, const Module& m) {
    append(list, prefix, m.parameters_);
    append(list, prefix, m.buffers_);
  });
  return list;
}

std::vector<Tensor> Module::parameters() const {
  std::vector<Tensor> list;
  for (NamedTensor& t : named_parameters()) list.push_back(std::move(t.tensor));
  return list;
}

std::vector<std::pair<std::string, Module*>> Module::named_modules() {
  std::vector<std::pair<std::string, Module*>> list;
  visit(*this, "", [&](const std::string& prefix, Module& m) {
    list.emplace_back(prefix.empty() ? prefix : prefix.substr(0, prefix.size() - 1), &m);
  });
  return list;
}

void Module::train(bool training) {
  visit(*this, "", [&](const std::string&, Module& m) { m.training_ = training; });
}

template <class Convert> void Module::replace_tensors(const Convert& convert) {
  const NoGrad no_grad;
  visit(*this, "", [&](const std::string&, Module& m) {
    for (const auto* list : {&m.parameters_, &m.buffers_}) {
      for (const auto& [name, tensor] : *list) {
        const Tensor converted = convert(m, *tensor);
        if (converted.shared() != tensor->shared()) tensor->set_data(converted);
      }
    }
  });
}

void Module::to(Device device) {
  replace_tensors([&](const Module&, const Tensor& t) { return t.to(device); });
}

void Module::to(Layout layout) {
  replace_tensors([&](const Module&, const Tensor& t) { return t.rank() == 4 ? t.to(layout) : t; });
}

void Module::to(DType dtype) {
  if (!is_floating(dtype)) {
    throw DtypeError(fmt::format("a module cannot compute in {}, which is not a floating dtype", name_of(dtype)),
                     "floating dtypes are f32, f64, f16 and bf16");
  }
  replace_tensors([&](const Module& owner, const Tensor& t) {
    return is_floating(t.dtype()) ? t.to(owner.tensor_dtype(dtype)) : t;
  });
}

void Module::zero_grad() {
  for (Tensor& parameter : parameters()) parameter.set_grad({});
}

void Module::check_name(const std::string& name) const {
  if (name.empty() || name.find('.') != std::string::npos) {
    throw UsageError(fmt::format("'{}' cannot name a part of a module: names are not empty and have no dots", name),
                     "dots separate the names in a path, such as layer1.0.conv1.weight");
  }
  const auto has = [&](const auto& list) {
    return std::any_of(list.begin(), list.end(), [&](const auto& entry) { return entry.first == name; });
  };
  if (has(children_) || has(parameters_) || has(buffers_)) {
    throw UsageError(fmt::format("a module has two parts named '{}'", name), "give each part a name of its own");
  }
}

void Module::add(std::string name, Module& child) {
  check_name(name);
  for (const auto& [path, module] : child.named_modules()) {
    if (module == this) {
      throw UsageError(fmt::format("the child '{}' contains the module that it is added to", name),
                       "modules form a tree: add a module of its own");
    }
  }
  children_.emplace_back(std::move(name), &child);
}

void Module::add_parameter(std::string name, Tensor& parameter) {
  check_name(name);
  parameter.requires_grad_();
  parameters_.emplace_back(std::move(name), &parameter);
}

void Module::add_buffer(std::string name, Tensor& buffer) {
  check_name(name);
  if (!buffer.defined()) {
    throw UsageError(fmt::format("the buffer '{}' is an undefined tensor", name), "assign it before it is added");
  }
  buffers_.emplace_back(std::move(name), &buffer);
}

ObserverScope::ObserverScope(Observer observer) : mine_(std::move(observer)), before_(current_observer) {
  current_observer = &mine_;
}

ObserverScope::~ObserverScope() { current_observer = before_; }

Sequential& Sequential::push_back(std::unique_ptr<Module> module) {
  if (!module) throw UsageError("Sequential: a null module was added", "pass std::make_unique<...>(...)");
  add(std::to_string(owned_.size()), *module);
  owned_.push_back(std::move(module));
  return *this;
}

Tensor Sequential::forward(const Tensor& x) {
  Tensor h = x;
  for (const auto& module : owned_) h = (*module)(h);
  return h;
}

}  // namespace cuttle::nn
