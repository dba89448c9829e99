#pragma once
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor_impl.hpp"
#include "cuttle/autograd.hpp"
#include "cuttle/tensor.hpp"

namespace cuttle::autograd {

/// Where a backward closure delivers the gradients of its op's inputs.
class Gradients {
 public:
  explicit Gradients(Node& node) : node_(node) {}
  /// Whether input i wants a gradient: skip the work if not.
  bool needed(std::size_t i) const;
  /// Adds g to the gradient of input i. Hand over by move what is yours alone: it is then kept, not copied.
  void give(std::size_t i, Tensor g);
  /// The gradient that leaf i has accumulated so far, for kernels that add to it themselves (beta = 1); undefined if
  /// there is none in the leaf's own precision, and then give() a fresh one.
  Tensor accumulated(std::size_t i) const;
  /// Of a node recorded with TakesTwo::yes: what is to be added to the gradient, or undefined. Ask once.
  Tensor take_second();

 private:
  Node& node_;
};

using Backward = std::function<void(Tensor grad, Gradients& inputs)>;

/// Whether a closure asks for take_second(): it then gets the last of several gradients unsummed, which saves a pass
/// where its kernel can add.
enum class TakesTwo { no, yes };

/// One recorded op with one output.
struct Node {
  struct Edge {
    std::shared_ptr<Node> node;        ///< the op that made this input, or
    std::shared_ptr<TensorImpl> leaf;  ///< the leaf that it is; neither: no gradient wanted
  };
  const char* op = "";
  Backward backward;  ///< empty once consumed
  std::vector<Edge> inputs;
  std::uint64_t sequence = 0;
  TakesTwo takes_two = TakesTwo::no;

  // Of the backward that runs now.
  Tensor pending, second;  ///< second only where takes_two
  int missing = 0;         ///< consumers that have not delivered yet

  Node() = default;
  ~Node();  // without recursion: graphs may be longer than the stack is deep
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
};

/// A tensor kept for backward, with the version it had.
class Saved {
 public:
  Saved() = default;
  explicit Saved(const Tensor& t) : tensor_(t.detach()), version_(t.version()) {}
  /// Throws AutogradError naming `op`, both versions and the op that changed it, if it is not what it was.
  const Tensor& get(const char* op) const;
  /// The same, for the last time: who asks may overwrite it where it is exclusive.
  Tensor take(const char* op);

 private:
  Tensor tensor_;
  std::uint32_t version_ = 0;
};

/// Whether an op on these inputs must be recorded; undefined tensors count as constants.
bool recording(std::initializer_list<const Tensor*> inputs);

/// Makes `out` the result of `op`. Call only if recording(inputs).
void record(const char* op, Tensor& out, std::initializer_list<const Tensor*> inputs, Backward backward,
            TakesTwo takes_two = TakesTwo::no);

/// Before an in-place op changes x: throws AutogradError if that cannot be recorded.
void check_in_place(const char* op, const Tensor& x, bool recorded);
/// After it: counts the change.
void mark_changed(const char* op, const Tensor& x);

/// Base of view ops: what the result is a view of.
ViewOf view_kind(const Tensor& base);

}  // namespace cuttle::autograd
