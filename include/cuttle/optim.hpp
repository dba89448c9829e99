#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cuttle/nn.hpp"
#include "cuttle/tensor.hpp"

namespace cuttle::optim {

/// Updates parameters from their gradients, in place, without history. Learning rate and step count live on the
/// parameters' device. A parameter without a gradient is left alone.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  void step();
  void zero_grad();
  double lr() const { return lr_; }
  void set_lr(double lr);
  std::int64_t steps() const { return steps_; }  ///< taken so far
  const std::vector<Tensor>& parameters() const { return params_; }
  /// State to save: "momentum.0"... in parameter order, and "step". Loading checks names and shapes (CheckpointError).
  std::vector<nn::NamedTensor> state() const;
  void load_state(const std::vector<nn::NamedTensor>& state);

 protected:
  Optimizer(std::vector<Tensor> parameters, double lr, double weight_decay, bool decay_norm_and_bias);
  virtual void update(const std::vector<std::size_t>& with_grad) = 0;
  virtual std::vector<std::pair<std::string, std::vector<Tensor>*>> state_lists() = 0;

  std::vector<Tensor> params_;
  std::vector<double> decay_;  ///< weight decay of each parameter
  Tensor lr_tensor_, step_tensor_;

 private:
  double lr_;
  std::int64_t steps_ = 0;
};

struct SGDOptions {
  double lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
  bool decay_norm_and_bias = true;  ///< false: parameters of rank 1 are not decayed
};
/// PyTorch's SGD: decay is added to the gradient, lr multiplies the buffer.
class SGD : public Optimizer {
 public:
  SGD(std::vector<Tensor> parameters, SGDOptions options);

 private:
  void update(const std::vector<std::size_t>& with_grad) override;
  std::vector<std::pair<std::string, std::vector<Tensor>*>> state_lists() override;
  SGDOptions options_;
  std::vector<Tensor> momentum_;
};

struct AdamWOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 1e-2;
  bool decay_norm_and_bias = true;
};
/// PyTorch's AdamW (decoupled weight decay).
class AdamW : public Optimizer {
 public:
  AdamW(std::vector<Tensor> parameters, AdamWOptions options);

 private:
  void update(const std::vector<std::size_t>& with_grad) override;
  std::vector<std::pair<std::string, std::vector<Tensor>*>> state_lists() override;
  AdamWOptions options_;
  std::vector<Tensor> exp_avg_, exp_avg_sq_;
};

/// Scales all gradients so that their common 2-norm is at most max_norm; returns the norm before (f32 scalar on the
/// device, not waited for). As torch.nn.utils.clip_grad_norm_.
Tensor clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm);

/// Learning rate as a function of the step: stateless, so resuming needs only the step. Factors multiply a base rate.
class Schedule {
 public:
  enum class Kind : std::uint8_t { constant, step, cosine, one_cycle };
  static Schedule constant(double lr);
  /// lr * gamma^floor(t / period): StepLR.
  static Schedule step(double lr, std::int64_t period, double gamma = 0.1);
  /// From lr to min_lr along half a cosine over `steps`: CosineAnnealingLR.
  static Schedule cosine(double lr, std::int64_t steps, double min_lr = 0);
  /// OneCycleLR with cosine annealing: from max_lr/div up to max_lr over the first `rise` of steps, down to
  /// max_lr/div/final_div.
  static Schedule one_cycle(double max_lr, std::int64_t steps, double rise = 0.3, double div = 25,
                            double final_div = 1e4);
  /// The same preceded by a linear rise from lr*start_factor to lr over `steps`; the rest is shifted by as much.
  Schedule with_warmup(std::int64_t steps, double start_factor = 0.01) const;
  /// Rate to use for step t (0 is the first).
  double operator()(std::int64_t t) const;

 private:
  Kind kind_ = Kind::constant;
  double lr_ = 0, gamma_ = 0, min_lr_ = 0, rise_ = 0, div_ = 0, final_div_ = 0;
  std::int64_t period_ = 1, warmup_ = 0;
  double warmup_factor_ = 1;
};

}  // namespace cuttle::optim
