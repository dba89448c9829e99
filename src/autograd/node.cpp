#include "autograd/node.hpp"

#include <fmt/format.h>

#include <atomic>

#include "cuttle/error.hpp"

namespace cuttle {

namespace {
thread_local bool recording_enabled = true;
}

bool grad_enabled() { return recording_enabled; }
void set_grad_enabled(bool enabled) { recording_enabled = enabled; }

namespace autograd {

Node::~Node() {
  std::vector<std::shared_ptr<Node>> doomed;
  auto take = [&](Node& node) {
    for (Edge& edge : node.inputs) {
      if (edge.node && edge.node.use_count() == 1) doomed.push_back(std::move(edge.node));
    }
    node.inputs.clear();
  };
  take(*this);
  while (!doomed.empty()) {
    std::shared_ptr<Node> last = std::move(doomed.back());
    doomed.pop_back();
    take(*last);
  }
}

const Tensor& Saved::get(const char* op) const {
  if (tensor_.version() != version_) {
    throw AutogradError(
        fmt::format(
            "backward of '{}' needs {} as it was at version {}, but it is at version {}: '{}' changed it in place", op,
            tensor_.str(), version_, tensor_.version(), tensor_.impl()->storage->changed_by()),
        "use the op that does not work in place, or clone() before it");
  }
  return tensor_;
}

Tensor Saved::take(const char* op) {
  get(op);
  return std::move(tensor_);
}

namespace {

/// A result that another handle changed in place has a history that no longer describes it.
void check_history(const char* op, const Tensor& t) {
  const TensorImpl& impl = *t.impl();
  if (impl.grad_fn && impl.history_version != impl.storage->version()) {
    throw AutogradError(fmt::format("'{}' got {}, the result of '{}', after '{}' changed its memory through another "
                                    "tensor: its gradient would be wrong",
                                    op, t.str(), impl.grad_fn->op, impl.storage->changed_by()),
                        "clone() before changing a tensor in place that is still used under another name");
  }
}

}  // namespace

bool recording(std::initializer_list<const Tensor*> inputs) {
  if (!recording_enabled) return false;
  for (const Tensor* t : inputs) {
    if (t->defined() && t->requires_grad()) return true;
  }
  return false;
}

void record(const char* op, Tensor& out, std::initializer_list<const Tensor*> inputs, Backward backward,
            TakesTwo takes_two) {
  static std::atomic<std::uint64_t> sequence{0};
  auto node = std::make_shared<Node>();
  node->op = op;
  node->backward = std::move(backward);
  node->sequence = ++sequence;
  node->takes_two = takes_two;
  node->inputs.reserve(inputs.size());
  for (const Tensor* t : inputs) {
    Node::Edge edge;
    if (t->defined() && t->requires_grad()) {
      if (t->impl()->grad_fn) {
        // An in-place op's own output is its input: what counts then was checked by check_in_place.
        if (t->impl() != out.impl()) check_history(op, *t);
        edge.node = t->impl()->grad_fn;
      } else {
        edge.leaf = t->shared();
      }
    }
    node->inputs.push_back(std::move(edge));
  }
  TensorImpl& impl = *out.impl();
  impl.grad_fn = std::move(node);
  impl.requires_grad = true;
  impl.history_version = impl.storage->version();
}

void check_in_place(const char* op, const Tensor& x, bool recorded) {
  const TensorImpl& impl = *x.impl();
  if (!recording_enabled) return;
  if (!impl.grad_fn && impl.requires_grad) {
    throw AutogradError(fmt::format("'{}' would change {} in place, a leaf that needs a gradient", op, x.str()),
                        "change parameters under NoGrad, or use the op that does not work in place");
  }
  if (recorded && (impl.view_of == ViewOf::leaf || (impl.view_of == ViewOf::constant && !impl.grad_fn))) {
    throw AutogradError(
        fmt::format("'{}' would change {} in place, a view of a tensor that does not record it", op, x.str()),
        "clone() the view first, or use the op that does not work in place");
  }
  if (recorded && impl.view_of == ViewOf::nothing && !impl.grad_fn && impl.storage.use_count() > 1) {
    throw AutogradError(
        fmt::format("'{}' would change {} in place, a constant with views, which would go on as constants", op,
                    x.str()),
        "clone() it first, or use the op that does not work in place");
  }
  check_history(op, x);
}

void mark_changed(const char* op, const Tensor& x) { x.impl()->storage->bump(op); }

ViewOf view_kind(const Tensor& base) {
  const TensorImpl& impl = *base.impl();
  if (impl.view_of == ViewOf::leaf) return ViewOf::leaf;
  if (impl.grad_fn) return ViewOf::history;
  return impl.requires_grad ? ViewOf::leaf : ViewOf::constant;
}

}  // namespace autograd
}  // namespace cuttle
