#pragma once
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cuttle/ops.hpp"

namespace cuttle::nn {

struct NamedTensor {
  std::string name;  ///< PyTorch's dotted path: "layer1.0.conv1.weight"
  Tensor tensor;
};

/// A node of the model tree. Children and parameters are members of the derived class, registered by name in its
/// constructor; so a module neither copies nor moves.
class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  virtual Tensor forward(const Tensor& x) = 0;
  /// forward(), shown to the observer of this thread if there is one.
  Tensor operator()(const Tensor& x);

  /// Parameters and buffers come module by module, a module's own before its children's, in registration order. One
  /// that is registered in several places is listed once, under its first name.
  std::vector<Tensor> parameters() const;
  std::vector<NamedTensor> named_parameters() const;
  std::vector<NamedTensor> named_buffers() const;  ///< running statistics
  /// PyTorch's state_dict: of each module parameters, then buffers, then children; shared ones under every name.
  std::vector<NamedTensor> state() const;
  std::vector<std::pair<std::string, Module*>> named_modules();  ///< itself ("") and all below, depth first

  void train(bool training = true);
  void eval() { train(false); }
  bool training() const { return training_; }
  /// These change the tensors themselves, so that every handle (an optimizer's, say) sees it; gradients are dropped
  /// where something changes.
  void to(Device device);
  void to(Layout layout);  ///< of 4-D parameters and buffers
  /// Of floating parameters and buffers, though norms stay in f32 for 16-bit types. Throws DtypeError if dtype is not
  /// floating.
  void to(DType dtype);
  void zero_grad();                                      ///< drops the gradients
  virtual std::string kind() const { return "Module"; }  ///< "Conv2d", "BatchNorm2d"...

 protected:
  /// A name must be new in this module, not empty, and without dots; a child must not contain this module. Throws
  /// UsageError. Parameters get requires_grad.
  void add(std::string name, Module& child);
  void add_parameter(std::string name, Tensor& parameter);
  void add_buffer(std::string name, Tensor& buffer);
  /// What this module's own tensors are kept in when the model computes in `compute`.
  virtual DType tensor_dtype(DType compute) const { return compute; }
  /// Shows an output of this module to the observer, for calls beside operator(); returns it.
  Tensor observed(Tensor output);

 private:
  template <class M, class Visit> static void visit(M& module, const std::string& prefix, const Visit& visitor);
  void check_name(const std::string& name) const;
  /// Sets each tensor of the tree to convert(owner, tensor).
  template <class Convert> void replace_tensors(const Convert& convert);

  std::vector<std::pair<std::string, Module*>> children_;
  std::vector<std::pair<std::string, Tensor*>> parameters_, buffers_;
  bool training_ = true;
};

/// Called after each module's forward with the module and its output, inner modules first.
using Observer = std::function<void(Module&, const Tensor& output)>;
/// Observes the modules that run in this thread while it lives; of nested scopes the innermost observes.
class ObserverScope {
 public:
  explicit ObserverScope(Observer observer);
  ~ObserverScope();
  ObserverScope(const ObserverScope&) = delete;
  ObserverScope& operator=(const ObserverScope&) = delete;

 private:
  Observer mine_;
  Observer* before_;
};

/// Owns its children and runs them in order; they are named "0", "1"...
class Sequential : public Module {
 public:
  Sequential() = default;
  template <class... Modules>
  requires(std::derived_from<Modules, Module>&&...) explicit Sequential(std::unique_ptr<Modules>... modules) {
    (push_back(std::move(modules)), ...);
  }
  Sequential& push_back(std::unique_ptr<Module> module);
  /// push_back(make_unique<M>(arguments...)), returning the new module.
  template <class M, class... Arguments> M& emplace(Arguments&&... arguments) {
    auto module = std::make_unique<M>(std::forward<Arguments>(arguments)...);
    M& result = *module;
    push_back(std::move(module));
    return result;
  }
  std::size_t size() const { return owned_.size(); }
  Module& operator[](std::size_t i) { return *owned_.at(i); }
  Tensor forward(const Tensor& x) override;
  std::string kind() const override { return "Sequential"; }

 private:
  std::vector<std::unique_ptr<Module>> owned_;
};

struct Conv2dOptions {
  Size2 kernel = 1, stride = 1, padding = 0, dilation = 1;
  std::int64_t groups = 1;
  bool bias = true;
  ConvAlgorithms algorithms = {};  ///< asked for by name (conv.hpp); empty: the policy chooses
};
/// weight[out, in/groups, R, S], bias[out]; PyTorch's default initialisation (Kaiming uniform, a = sqrt 5). Throws
/// ShapeError for sizes below 1 (padding below 0) and channels that do not divide into groups, UsageError for the name
/// of an algorithm that no backend has.
class Conv2d : public Module {
 public:
  Conv2d(std::int64_t in, std::int64_t out, Conv2dOptions options);
  Tensor forward(const Tensor& x) override;
  Tensor relu(const Tensor& x);  ///< with ReLU in the same pass over memory; an observer sees the result of both
  std::string kind() const override { return "Conv2d"; }
  const Conv2dOptions& options() const { return options_; }
  /// From now on. Throws UsageError for a name that no backend has.
  void set_algorithms(ConvAlgorithms wanted, std::string layer = {});
  ConvAlgorithms algorithms() const { return choice_->used(); }  ///< what computed each pass last; empty: none ran yet
  Tensor weight, bias;

 private:
  Tensor convolve(const Tensor& x, const Activation& then);
  Conv2dOptions options_;
  std::shared_ptr<ConvChoice> choice_;
};

struct LinearOptions {
  bool bias = true;
};
/// weight[out, in], bias[out]; PyTorch's default initialisation. Throws ShapeError for sizes below 1.
class Linear : public Module {
 public:
  Linear(std::int64_t in, std::int64_t out, LinearOptions options = {});
  Tensor forward(const Tensor& x) override;
  Tensor relu(const Tensor& x);  ///< with ReLU in the same pass over memory; an observer sees the result of both
  std::string kind() const override { return "Linear"; }
  Tensor weight, bias;
};

struct BatchNorm2dOptions {
  double eps = 1e-5;
  double momentum = 0.1;
};
/// weight = 1, bias = 0, running_mean = 0, running_var = 1 (f32[channels]), num_batches_tracked i64 scalar. Throws
/// ShapeError for no channels, UsageError for eps that is not positive or momentum outside [0,1].
class BatchNorm2d : public Module {
 public:
  explicit BatchNorm2d(std::int64_t channels, BatchNorm2dOptions options = {});
  Tensor forward(const Tensor& x) override;
  // The same with what follows it in one pass over memory; an observer sees the result of all.
  Tensor relu(const Tensor& x);
  Tensor relu6(const Tensor& x);
  Tensor add(const Tensor& x, const Tensor& residual);
  Tensor add_relu(const Tensor& x, const Tensor& residual);
  std::string kind() const override { return "BatchNorm2d"; }
  Tensor weight, bias, running_mean, running_var, num_batches_tracked;

 protected:
  /// Statistics need the range and precision of f32.
  DType tensor_dtype(DType compute) const override { return compute == DType::f64 ? DType::f64 : DType::f32; }

 private:
  Tensor normalize(const Tensor& x, const Activation& then);
  BatchNorm2dOptions options_;
};

struct ReLUOptions {
  bool inplace = false;
};
class ReLU : public Module {
 public:
  explicit ReLU(ReLUOptions options = {}) : options_(options) {}
  Tensor forward(const Tensor& x) override;
  std::string kind() const override { return "ReLU"; }

 private:
  ReLUOptions options_;
};

class ReLU6 : public Module {
 public:
  explicit ReLU6(ReLUOptions options = {}) : options_(options) {}
  Tensor forward(const Tensor& x) override;
  std::string kind() const override { return "ReLU6"; }

 private:
  ReLUOptions options_;
};

class Dropout : public Module {
 public:
  /// Throws UsageError unless 0 <= p <= 1.
  explicit Dropout(double p = 0.5);
  Tensor forward(const Tensor& x) override;
  std::string kind() const override { return "Dropout"; }

 private:
  double p_;
};

class MaxPool2d : public Module {
 public:
  /// Throws ShapeError for a kernel or dilation below 1, a negative stride, padding above half the kernel.
  explicit MaxPool2d(Pool2dOptions options);
  Tensor forward(const Tensor& x) override;
  std::string kind() const override { return "MaxPool2d"; }

 private:
  Pool2dOptions options_;
};

class AvgPool2d : public Module {
 public:
  /// As MaxPool2d; a dilation is a UsageError.
  explicit AvgPool2d(Pool2dOptions options);
  Tensor forward(const Tensor& x) override;
  std::string kind() const override { return "AvgPool2d"; }

 private:
  Pool2dOptions options_;
};

class AdaptiveAvgPool2d : public Module {
 public:
  /// Throws ShapeError for an output size below 1.
  explicit AdaptiveAvgPool2d(Size2 output);
  Tensor forward(const Tensor& x) override;
  std::string kind() const override { return "AdaptiveAvgPool2d"; }

 private:
  Size2 output_;
};

class Flatten : public Module {
 public:
  Tensor forward(const Tensor& x) override;
  std::string kind() const override { return "Flatten"; }
};

/// Passes its input on: torchvision's way to leave a layer out.
class Identity : public Module {
 public:
  Tensor forward(const Tensor& x) override { return x; }
  std::string kind() const override { return "Identity"; }
};

/// Initialisers, in place, from init_generator(), as torch.nn.init; they may change parameters. Fan-in of [K,C,R,S] is
/// C*R*S, fan-out K*R*S.
namespace init {
enum class Fan : std::uint8_t { in, out };
void uniform_(Tensor t, double low, double high);
void normal_(Tensor t, double mean, double stddev);
void constant_(Tensor t, double value);
/// He et al., "Delving deep into rectifiers", 2015: standard deviation sqrt(2 / ((1 + negative_slope^2) * fan)), the
/// uniform one within +-sqrt(3) of it. Throws ShapeError for a tensor of rank below 2, which has no fan.
void kaiming_uniform_(Tensor t, double negative_slope = 0, Fan fan = Fan::in);
void kaiming_normal_(Tensor t, double negative_slope = 0, Fan fan = Fan::in);
}  // namespace init

/// Copies tensors into the module by name, converting dtype, layout and device. Throws CheckpointError listing
/// missing, unexpected, repeated and mis-shaped names; nothing is changed then, nor if memory runs out.
void load_state(Module& module, const std::vector<NamedTensor>& tensors);

/// Sets the algorithms of the model's Conv2d layers; of several rules for one layer and pass the last holds. Throws
/// UsageError for a rule that fits no layer (listing them) or no pass.
void apply_conv_rules(Module& model, std::span<const ConvRule> rules);

}  // namespace cuttle::nn
