#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cuttle/nn.hpp"
#include "cuttle/tensor.hpp"

namespace cuttle::optim {

/// Updates parameters from their gradients, in place, without history. Learning rate and step counts live on the
/// parameters' device. A parameter without a gradient is left alone, and its first update is its step 1 whenever that
/// comes. Parameters may change device, layout or dtype between steps: their state follows.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// `factor` (f32 scalar on the parameters' device) multiplies the gradients; where it is not finite nothing changes
  /// and the update does not count in state(). The device decides that, without being waited for. Throws DeviceError or
  /// DtypeError, before any change, where parameters lie on several devices or factor is of another device or dtype.
  void step(const Tensor& factor = {});
  void zero_grad();  ///< drops the gradients
  double lr() const { return lr_; }
  void set_lr(double lr);                        ///< throws UsageError unless finite and >= 0
  std::int64_t steps() const { return steps_; }  ///< calls of step() so far, skipped ones included
  /// For recorded steps, which run without a call: sets what steps() counts. The device counts for itself.
  void set_steps(std::int64_t steps) { steps_ = steps; }
  const std::vector<Tensor>& parameters() const { return params_; }
  /// Copies of the state, to save: "step" (i64 scalar), "updates" (i64[parameters], how often each was updated), and
  /// for each parameter i that was, "momentum.i" (or "exp_avg.i", "exp_avg_sq.i"). Options and learning rate are the
  /// caller's.
  std::vector<nn::NamedTensor> state() const;
  /// Throws CheckpointError listing names and shapes that do not fit; nothing is changed then.
  void load_state(const std::vector<nn::NamedTensor>& state);

 protected:
  /// One tensor like its parameter for each parameter: zero before the parameter's first update, undefined until then.
  struct StateList {
    std::string name;
    std::vector<Tensor> tensors;
  };
  /// Parameters with gradients that were updated equally often.
  struct Group {
    std::vector<Tensor> params, grads;
    std::vector<Tensor> copies;               ///< in f16 or bf16, to be kept equal; undefined where there is none
    std::vector<std::vector<Tensor>> states;  ///< in the order of the state names
    std::vector<double> decay;                ///< weight decay of each parameter
    Tensor step;                              ///< i64 scalar: updates so far; the kernel counts this one
    Tensor factor;                            ///< of the gradients, f32 scalar; undefined: 1
  };

  /// Throws UsageError naming the value: no parameters, one twice, one that is a result; lr or weight_decay negative or
  /// not finite. `name` is kept, in the versions of the parameters too: a literal.
  Optimizer(const char* name, std::vector<Tensor> parameters, double lr, double weight_decay, bool decay_norm_and_bias,
            std::vector<std::string> state_names);
  virtual void update(const Group& group) = 0;
  const Tensor& lr_tensor() const { return lr_tensor_; }  ///< f32 scalar on the parameters' device

 private:
  /// Parameters that were updated equally often: they share one counter, which the kernel reads on the device.
  struct Cohort {
    std::vector<std::size_t> members;
    Tensor step;
  };
  void check_devices() const;
  void follow_parameters();
  void split_cohorts();
  void check_factor(const Tensor& factor) const;
  Group group_of(const Cohort& cohort);

  const char* name_;
  std::vector<Tensor> params_;
  std::vector<double> decay_;
  std::vector<StateList> states_;
  std::vector<Cohort> cohorts_;
  Tensor lr_tensor_;
  double lr_;
  std::int64_t steps_ = 0;
};

struct SGDOptions {
  double lr = 1e-3, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
  bool decay_norm_and_bias = true;  ///< false: parameters of rank 1 are not decayed
};
/// PyTorch's SGD: decay is added to the gradient, lr multiplies the buffer, a parameter's first buffer is its gradient.
class SGD : public Optimizer {
 public:
  /// Throws UsageError naming the value: momentum outside [0,1), dampening outside [0,1], nesterov without momentum or
  /// with dampening, and what Optimizer() rejects.
  SGD(std::vector<Tensor> parameters, SGDOptions options);

 private:
  void update(const Group& group) override;
  SGDOptions options_;
};

struct AdamWOptions {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8, weight_decay = 1e-2;
  bool decay_norm_and_bias = true;
};
/// PyTorch's AdamW (decoupled weight decay).
class AdamW : public Optimizer {
 public:
  /// Throws UsageError naming the value: a beta outside [0,1), a negative eps, and what Optimizer() rejects.
  AdamW(std::vector<Tensor> parameters, AdamWOptions options);

 private:
  void update(const Group& group) override;
  AdamWOptions options_;
};

/// The common 2-norm of all gradients (f32 scalar on the device, not waited for), 0 where there are no gradients.
/// Throws DeviceError if they lie on several devices.
Tensor grad_norm(const std::vector<Tensor>& parameters);
/// Scales all gradients so that their common 2-norm is at most max_norm; returns the norm before (f32 scalar on the
/// device, not waited for), 0 where there are no gradients. As torch.nn.utils.clip_grad_norm_. Throws UsageError if
/// max_norm is negative or NaN.
Tensor clip_grad_norm_(const std::vector<Tensor>& parameters, double max_norm);

/// Learning rate as a function of the step: stateless, so resuming needs only the step. The factories throw UsageError
/// naming an impossible value. After its last step a schedule stays at its last rate.
class Schedule {
 public:
  enum class Kind : std::uint8_t { constant, step, cosine, one_cycle };
  static Schedule constant(double lr);
  /// lr * gamma^floor(t / period): StepLR.
  static Schedule step(double lr, std::int64_t period, double gamma = 0.1);
  /// From lr to min_lr along half a cosine over `steps`: CosineAnnealingLR.
  static Schedule cosine(double lr, std::int64_t steps, double min_lr = 0);
  /// OneCycleLR with cosine annealing: from max_lr/div up to max_lr over the first `rise` (a fraction) of steps, down
  /// to max_lr/div/final_div.
  static Schedule one_cycle(double max_lr, std::int64_t steps, double rise = 0.3, double div = 25,
                            double final_div = 1e4);
  /// The same preceded by a linear rise over `steps` (0: none) from start_factor times its first rate to that rate; the
  /// rest is shifted by as much.
  Schedule with_warmup(std::int64_t steps, double start_factor = 0.01) const;
  /// Rate to use for step t >= 0 (0 is the first).
  double operator()(std::int64_t t) const;

 private:
  double after_warmup(std::int64_t t) const;
  double one_cycle_rate(std::int64_t t) const;

  Kind kind_ = Kind::constant;
  double lr_ = 0;                      ///< of one_cycle the highest
  std::int64_t period_ = 1;            ///< length of the schedule; of `step` one stair
  double gamma_ = 1;                   ///< step
  double first_lr_ = 0, last_lr_ = 0;  ///< one_cycle, cosine
  double rise_ = 0;                    ///< one_cycle
  std::int64_t warmup_ = 0;
  double warmup_factor_ = 1;
};

}  // namespace cuttle::optim
