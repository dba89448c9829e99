#include <fmt/format.h>

#include <queue>
#include <unordered_set>
#include <utility>

#include "autograd/node.hpp"
#include "cuttle/error.hpp"
#include "kernels.hpp"

namespace cuttle {
namespace autograd {
namespace {

/// a + b, into whichever of the two nobody else can see.
Tensor sum_of(Tensor a, Tensor b) {
  Tensor out = is_exclusive(a) ? a : is_exclusive(b) ? b : Tensor::empty(a.shape(), a.options());
  if (a.numel() > 0) kernels(a).add(a, b, out);
  return out;
}

void add_to_leaf(TensorImpl& leaf, Tensor g) {
  // The leaf may have been given other data (Module::to) since the op that used it ran.
  if (g.shape() != leaf.shape || !can_be_gradient(g.dtype(), leaf.dtype) || g.device() != leaf.storage->device()) {
    throw AutogradError(fmt::format("backward: the gradient {} does not fit its leaf, which is {}{} on {} by now",
                                    g.str(), name_of(leaf.dtype), leaf.shape.str(), leaf.storage->device().str()),
                        "convert or move the model before the forward pass, not between forward and backward");
  }
  if (g.rank() == 4) g = g.to(leaf.layout);
  if (leaf.grad.defined()) {
    // One gradient of 16 bits is kept as it came; sums are made in the leaf's own precision.
    leaf.grad = leaf.grad.to(leaf.dtype);
    g = g.to(leaf.dtype);
    if (g.numel() > 0) kernels(g).add(leaf.grad, g, leaf.grad);
    leaf.grad.impl()->storage->bump("backward");
    return;
  }
  // The optimizer will change the gradient in place: it must be nobody else's, and no part of something larger.
  const bool own = is_exclusive(g) && g.impl()->storage->bytes() == g.nbytes();
  leaf.grad = own ? std::move(g) : g.clone();
}

/// Counts for each node below root how many deliveries it waits for.
std::vector<Node*> prepare(Node& root) {
  std::vector<Node*> order{&root};
  std::unordered_set<Node*> seen{&root};
  for (std::size_t i = 0; i < order.size(); ++i) {
    Node& node = *order[i];
    if (!node.backward) {
      throw AutogradError(
          fmt::format("backward reached '{}' a second time: its saved tensors were freed by an earlier backward",
                      node.op),
          "run the forward pass again, or add the losses and call backward once");
    }
    for (const Node::Edge& edge : node.inputs) {
      if (edge.node && seen.insert(edge.node.get()).second) {
        edge.node->missing = 0;
        order.push_back(edge.node.get());
      }
    }
  }
  for (Node* node : order) {
    for (const Node::Edge& edge : node->inputs) {
      if (edge.node) ++edge.node->missing;
    }
  }
  return order;
}

struct RunsLater {
  bool operator()(const std::shared_ptr<Node>& a, const std::shared_ptr<Node>& b) const {
    return a->sequence < b->sequence;
  }
};

void run(const std::shared_ptr<Node>& root, Tensor gradient) {
  // Nodes die as their consumers let go of them: the queue and `done` own them until every pointer in `all` is unused.
  std::priority_queue<std::shared_ptr<Node>, std::vector<std::shared_ptr<Node>>, RunsLater> ready;
  std::vector<std::shared_ptr<Node>> done;
  const std::vector<Node*> all = prepare(*root);
  done.reserve(all.size());
  struct Cleanup {  // an op that throws leaves no half-summed gradient behind
    const std::vector<Node*>& nodes;
    ~Cleanup() {
      for (Node* node : nodes) node->pending = node->second = {};
    }
  } cleanup{all};

  root->pending = std::move(gradient);
  ready.push(root);
  while (!ready.empty()) {
    std::shared_ptr<Node> node = ready.top();
    done.push_back(node);
    ready.pop();
    const Backward backward = std::exchange(node->backward, nullptr);  // saved tensors go when it goes
    if (node->pending.defined()) {
      Gradients inputs(*node);
      backward(std::move(node->pending), inputs);
    }
    for (Node::Edge& edge : node->inputs) {
      if (edge.node && --edge.node->missing == 0) ready.push(edge.node);
    }
    // Edges stay until the end, so that cleanup finds every node alive; they hold no tensors but leaves.
  }
  for (const auto& node : done) node->inputs.clear();
}

}  // namespace

bool Gradients::needed(std::size_t i) const {
  const Node::Edge& edge = node_.inputs.at(i);
  return edge.node || edge.leaf;
}

void Gradients::give(std::size_t i, Tensor g) {
  const Node::Edge& edge = node_.inputs.at(i);
  if (edge.leaf) {
    add_to_leaf(*edge.leaf, std::move(g));
  } else if (edge.node) {
    Node& to = *edge.node;
    if (!to.pending.defined()) {
      to.pending = std::move(g);
    } else if (to.takes_two == TakesTwo::yes && to.missing == 1 && !to.second.defined()) {
      to.second = std::move(g);  // the last one: an earlier one would wait in memory for those that follow
    } else {
      to.pending = sum_of(std::move(to.pending), std::move(g));
    }
  }
}

Tensor Gradients::take_second() { return std::move(node_.second); }

Tensor Gradients::accumulated(std::size_t i) const {
  const Node::Edge& edge = node_.inputs.at(i);
  const bool whole = edge.leaf && edge.leaf->grad.defined() && edge.leaf->grad.dtype() == edge.leaf->dtype;
  return whole ? edge.leaf->grad : Tensor();
}

}  // namespace autograd

void Tensor::backward() const {
  if (numel() != 1) {
    throw AutogradError("backward: " + str() + " is not a scalar, so it has no one gradient",
                        "reduce it with sum() or mean(), or pass the gradient of the result");
  }
  backward(Tensor::ones(shape(), options()));
}

void Tensor::backward(const Tensor& gradient) const {
  if (!requires_grad()) {
    throw AutogradError("backward: " + str() +
                        " needs no gradient: no input of its ops had requires_grad, or it was "
                        "computed under NoGrad");
  }
  if (gradient.shape() != shape() || gradient.dtype() != dtype() || gradient.device() != device()) {
    throw ShapeError("backward: the gradient " + gradient.str() + " does not fit the tensor " + str());
  }
  const NoGrad no_grad;
  Tensor g = rank() == 4 ? gradient.to(layout()) : gradient.detach();
  const TensorImpl& root = *impl_;
  if (!root.grad_fn) {
    autograd::add_to_leaf(*impl_, std::move(g));
    return;
  }
  if (root.history_version != root.storage->version()) {
    throw AutogradError(
        fmt::format("backward: {}, the result of '{}', was changed in place by '{}' through another tensor", str(),
                    root.grad_fn->op, root.storage->changed_by()));
  }
  autograd::run(root.grad_fn, std::move(g));
}

}  // namespace cuttle
