#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cuttle/conv.hpp"
#include "cuttle/error.hpp"
#include "cuttle/memory.hpp"
#include "cuttle/ops.hpp"
#include "cuttle/philox.hpp"
#include "cuttle/tensor.hpp"

/// The only contract between ops and backends. Ops check every argument, allocate every output and then call a slot;
/// a backend fills the slots it has. Kernels may assume: shapes, dtypes, layouts and devices agree; outputs are
/// allocated and dense; all 4-D tensors of a call have one layout; numel() > 0 for the main output.
namespace cuttle {

/// A named function pointer; calling an empty one says which kernel is missing where.
template <class Signature> struct Slot;
template <class... Args> struct Slot<void(Args...)> {
  const char* name;
  void (*run)(Args...) = nullptr;
  Slot& operator=(void (*kernel)(Args...)) {
    run = kernel;
    return *this;
  }
  void operator()(Args... args) const {
    if (!run) throw DeviceError(std::string("no kernel '") + name + "' on this device", "run with --device cpu");
    run(args...);
  }
};

using Tensors = std::span<const Tensor>;

/// "accumulate": the output already holds a gradient and the kernel adds to it (beta = 1), else it overwrites.
struct Kernels {
  // Elementwise. `convert` changes dtype and layout of equal logical shapes on one device.
  Slot<void(const Tensor& out, double value)> fill{"fill"};
  Slot<void(const Tensor& in, const Tensor& out)> convert{"convert"};
  Slot<void(const Tensor& scalar, const Tensor& out)> broadcast{"broadcast"};  // every element becomes the scalar
  // Random elements depend on (key, i) alone, i counting in memory order: w(i) is word i%4 of counter offset + i/4.
  // Both compute in double and round once, so that backends differ by no more than their sin, cos and log.
  /// fma(high - low, philox_uniform(w(i)), low)
  Slot<void(const Tensor& out, PhiloxKey, double low, double high)> uniform{"uniform"};
  /// Box-Muller, for even i: r = sqrt(-2 log((w(i) + 1) / 2^32)), a = 2 pi w(i+1) / 2^32; element i is
  /// fma(stddev, r cos(a), mean) and element i+1 fma(stddev, r sin(a), mean).
  Slot<void(const Tensor& out, PhiloxKey, double mean, double stddev)> normal{"normal"};
  Slot<void(const Tensor& a, const Tensor& b, const Tensor& out)> add{"add"};    // out may be a or b
  Slot<void(const Tensor& x, double factor, const Tensor& out)> scale{"scale"};  // out may be x
  /// min(max(x, 0), ceiling), NaN stays NaN; ceiling is infinity for ReLU and 6 for ReLU6. out may be x, dx may be dy.
  Slot<void(const Tensor& x, double ceiling, const Tensor& out)> relu{"relu"};
  /// dy where 0 < y < ceiling (or y is NaN), else 0.
  Slot<void(const Tensor& y, const Tensor& dy, double ceiling, const Tensor& dx)> relu_backward{"relu_backward"};
  /// Element i is kept, times 1/(1-p), iff philox_uniform(w(i)) >= p; else it is 0. Its own backward. `advance` (i64
  /// scalar on the device, or undefined) is added to the key's offset by the kernel: a captured step draws new numbers
  /// at every replay.
  Slot<void(const Tensor& x, double p, PhiloxKey, const Tensor& advance, const Tensor& out)> dropout{"dropout"};
  Slot<void(const Tensor& x, const Tensor& out)> sum{"sum"};                            // scalar out
  Slot<void(const Tensor& x, const Tensor& out)> non_finite_count{"non_finite_count"};  // i64 scalar
  /// u8 -> out of any floating dtype, same layout: ((pixel / 255) - mean[c]) / stddev[c]. `windows` (i32[N,3]: top,
  /// left, flip; or undefined) moves each image: out(h, w) = in(h + top, flip ? W-1 - w + left : w + left), 0 outside.
  Slot<void(const Tensor& images, const Tensor& mean, const Tensor& stddev, const Tensor& windows, const Tensor& out)>
      normalize_images{"normalize_images"};

  // Convolution. bias may be undefined; `relu` clamps y at 0 from below.
  Slot<void(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2dOptions&, bool relu, const Tensor& y)>
      conv2d{"conv2d"};
  Slot<void(const Tensor& dy, const Tensor& w, const Conv2dOptions&, const Tensor& dx)> conv2d_backward_data{
      "conv2d_backward_data"};
  Slot<void(const Tensor& dy, const Tensor& x, const Conv2dOptions&, const Tensor& dw, bool accumulate)>
      conv2d_backward_filter{"conv2d_backward_filter"};
  /// Sum over all but the channel dimension: dy[N,K,P,Q] or [M,K] -> [K].
  Slot<void(const Tensor& dy, const Tensor& db, bool accumulate)> bias_backward{"bias_backward"};
  /// Of y = relu(... + bias), in one pass: dx = dy where y > 0 (or y is NaN), else 0; db as bias_backward of dx. dx may
  /// be dy.
  Slot<void(const Tensor& y, const Tensor& dy, const Tensor& dx, const Tensor& db, bool accumulate)> bias_relu_backward{
      "bias_relu_backward"};

  // Linear: x[M,I], w[O,I], y[M,O]; `relu` as above.
  Slot<void(const Tensor& x, const Tensor& w, const Tensor& bias, bool relu, const Tensor& y)> linear{"linear"};
  Slot<void(const Tensor& dy, const Tensor& w, const Tensor& dx)> linear_backward_data{"linear_backward_data"};
  Slot<void(const Tensor& dy, const Tensor& x, const Tensor& dw, bool accumulate)> linear_backward_weight{
      "linear_backward_weight"};

  // Pooling. `argmax` holds for each output the index r*S+s of the winner in its window (the first of equals): u8 if
  // the window has at most 256 places, else i32. Only the backward asks for it: where no gradient is recorded,
  // max_pool2d gets an undefined one and writes y alone. Options are resolved (stride set).
  Slot<void(const Tensor& x, const Pool2dOptions&, const Tensor& y, const Tensor& argmax)> max_pool2d{"max_pool2d"};
  Slot<void(const Tensor& dy, const Tensor& argmax, const Pool2dOptions&, const Tensor& dx)> max_pool2d_backward{
      "max_pool2d_backward"};
  Slot<void(const Tensor& x, const Pool2dOptions&, const Tensor& y)> avg_pool2d{"avg_pool2d"};
  Slot<void(const Tensor& dy, const Pool2dOptions&, const Tensor& dx)> avg_pool2d_backward{"avg_pool2d_backward"};
  Slot<void(const Tensor& x, const Tensor& y)> adaptive_avg_pool2d{"adaptive_avg_pool2d"};
  Slot<void(const Tensor& dy, const Tensor& dx)> adaptive_avg_pool2d_backward{"adaptive_avg_pool2d_backward"};

  // Batch norm, followed by an Activation. weight, bias, running_* and batches (i64 scalar, counted up) may be
  // undefined; mean and inv_std f32[C] (f64 where x is f64) are outputs of the forward in training and inputs of the
  // backward.
  Slot<void(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
            const Tensor& running_var, const Tensor& batches, const BatchNorm2dOptions&, const Activation&,
            const Tensor& y, const Tensor& mean, const Tensor& inv_std)>
      batch_norm_train{"batch_norm_train"};
  Slot<void(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& running_mean,
            const Tensor& running_var, double eps, const Activation&, const Tensor& y)>
      batch_norm_eval{"batch_norm_eval"};
  /// act.residual is not given, only whether one was `added`: y is defined where that and act.relu are so; without it
  /// the clamp is told from x. d_residual (undefined where none is wanted; may be dy) receives dy behind the clamp.
  /// d_weight and d_bias may be undefined; they are overwritten. The gradient is dy, or dy + dy2 where dy2 is defined:
  /// then d_residual is too, and may be dy or dy2. dx may be x, or dy2 if d_residual is not.
  Slot<void(const Tensor& dy, const Tensor& dy2, const Tensor& x, const Tensor& y, const Tensor& weight,
            const Tensor& bias, const Tensor& mean, const Tensor& inv_std, const Activation& act, bool added,
            const Tensor& dx, const Tensor& d_residual, const Tensor& d_weight, const Tensor& d_bias)>
      batch_norm_train_backward{"batch_norm_train_backward"};
  /// Of batch_norm_eval: mean and inv_std are constants; y is defined where act.relu. dx, d_residual, d_weight, d_bias
  /// may each be undefined.
  Slot<void(const Tensor& dy, const Tensor& x, const Tensor& y, const Tensor& weight, const Tensor& running_mean,
            const Tensor& running_var, double eps, const Activation& act, const Tensor& dx, const Tensor& d_residual,
            const Tensor& d_weight, const Tensor& d_bias)>
      batch_norm_eval_backward{"batch_norm_eval_backward"};

  // Classification, x[N,K]. Targets are i64[N]; the CPU kernels throw DataError on one outside [0,K), the CUDA kernels,
  // which nobody waits for, make the loss NaN.
  Slot<void(const Tensor& x, const Tensor& y)> log_softmax{"log_softmax"};
  Slot<void(const Tensor& dy, const Tensor& y, const Tensor& dx)> log_softmax_backward{"log_softmax_backward"};
  Slot<void(const Tensor& x, const Tensor& y)> softmax{"softmax"};
  Slot<void(const Tensor& dy, const Tensor& y, const Tensor& dx)> softmax_backward{"softmax_backward"};
  /// loss: scalar (mean or sum); log_sum_exp[N] is kept for the backward. correct (i64 scalar, may be undefined)
  /// receives what correct_count gives.
  Slot<void(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions&, const Tensor& loss,
            const Tensor& log_sum_exp, const Tensor& correct)>
      cross_entropy{"cross_entropy"};
  Slot<void(const Tensor& d_loss, const Tensor& logits, const Tensor& targets, const Tensor& log_sum_exp,
            const CrossEntropyOptions&, const Tensor& d_logits)>
      cross_entropy_backward{"cross_entropy_backward"};
  Slot<void(const Tensor& logits, const Tensor& targets, const Tensor& out)> correct_count{"correct_count"};

  // Optimizers: one call for the whole model. Scalars that change between steps are tensors on the device, so that a
  // captured step reads their current value.
  struct Update {
    Tensors params;                 ///< f32 (CPU: or f64)
    Tensors grads;                  ///< each of the parameter's shape and layout, of its dtype or f16 or bf16
    Tensors copies;                 ///< f16 or bf16 copies of the parameters to rewrite too; undefined where none,
                                    ///< empty where there are none at all
    std::span<const double> decay;  ///< weight decay of each
    Tensor lr;                      ///< f32 scalar
    Tensor step;                    ///< i64 scalar: updates so far; the kernel counts this one
    Tensor factor;                  ///< f32 scalar that multiplies gradients; not finite: change nothing; undefined: 1
  };
  struct SgdHyper {
    double momentum, dampening;
    bool nesterov;
  };
  /// g = factor*grad + decay[i]*param; buffer = momentum*buffer + (1-dampening)*g (buffer = g in update 1);
  /// param -= lr * (nesterov ? g + momentum*buffer : buffer). buffers is empty where momentum is 0.
  Slot<void(const Update&, Tensors buffers, const SgdHyper&)> sgd_step{"sgd_step"};
  struct AdamWHyper {
    double beta1, beta2, eps;
  };
  /// Loshchilov & Hutter, decoupled decay; the number of the update, from 1 on, gives the bias correction.
  Slot<void(const Update&, Tensors exp_avg, Tensors exp_avg_sq, const AdamWHyper&)> adamw_step{"adamw_step"};
  /// Dynamic loss scaling, as torch.amp.GradScaler.
  struct LossScaleRule {
    double growth = 2, backoff = 0.5;
    std::int64_t interval = 2000;  ///< good steps in a row before the scale grows
    double least = 1, most = 65536.0 * 256;
  };
  /// Of the gradients of losses times `scale` (f32 scalar, may be undefined: 1). norm (f32 scalar, out): their
  /// global_norm, 0 where there are none, divided by the scale. factor (f32 scalar, out): 1/scale * min(1, max_norm /
  /// (norm + 1e-6)), no min where max_norm is 0; NaN where the norm is not finite. The scale then follows the rule;
  /// counts (i64[2], undefined with scale) holds good steps since it last changed and skipped steps in a row.
  Slot<void(Tensors gradients, const Tensor& norm, const Tensor& scale, const Tensor& counts, double max_norm,
            const LossScaleRule&, const Tensor& factor)>
      gradient_factor{"gradient_factor"};
  /// sqrt of the sum of squares of all elements of all tensors -> f32 scalar.
  Slot<void(Tensors tensors, const Tensor& norm)> global_norm{"global_norm"};
  /// tensor *= min(1, max_norm / (norm + 1e-6)) for each, norm read on the device.
  Slot<void(Tensors tensors, const Tensor& norm, double max_norm)> clip_by_norm{"clip_by_norm"};
};

/// Work that was recorded once and can be queued again as one call: the same kernels on the same addresses.
class CapturedWork {
 public:
  virtual ~CapturedWork() = default;
  virtual void replay() = 0;
};

/// Bytes on their way to the host.
class Readback {
 public:
  virtual ~Readback() = default;
  virtual bool ready() = 0;
  virtual const void* wait() = 0;  ///< valid as long as this lives
};

/// Bytes on their way to the device.
class Upload {
 public:
  virtual ~Upload() = default;
  virtual void join() = 0;  ///< work queued from now on sees them; does not wait
};

/// One convolution, as a slot is called for it: forward (a, b) = (x, w), out = y; backward_data (dy, w), dx;
/// backward_filter (dy, x), dw.
struct ConvCall {
  ConvPass pass;
  Tensor a, b, out, bias;
  Conv2dOptions options;
  bool relu = false, accumulate = false;
};

/// One algorithm that a backend has for a call.
struct ConvCandidate {
  std::string api;          ///< graph, legacy or gemm; own for kernels of ours on the GPU, cpu on the CPU
  std::string name;         ///< as ConvAlgorithms takes it
  std::string reason = {};  ///< why it cannot run; empty if it can
  std::uint64_t workspace_bytes = 0;
  bool deterministic = true, tensor_cores = false;
  std::vector<std::string> notes = {};  ///< numerical and behaviour notes, in cuDNN's words in lower case
  std::function<void()> run = {};       ///< queues the work; empty where there is a reason
};

/// One kind of device.
struct Backend {
  Kernels kernels;
  std::vector<DeviceInfo> (*devices)() = nullptr;
  std::unique_ptr<memory::MemorySource> (*make_source)(int index) = nullptr;
  void (*synchronize)(int index) = nullptr;
  /// Bytes between host and this device or within it; ordered with the device's stream.
  /// The host side may be changed or freed when it returns.
  void (*copy)(void* to, Device to_device, const void* from, Device from_device, std::size_t bytes) = nullptr;
  /// Calls work() once, recording what it queues instead of running it; the caller keeps what it allocates at
  /// its place (AllocationScope). Throws what work() throws, and DeviceError where work() did what cannot be recorded
  /// (waiting for the device). Null where there is no such thing.
  std::unique_ptr<CapturedWork> (*capture)(int index, const std::function<void()>& work) = nullptr;
  /// Starts to copy a tensor to the host behind what is queued, without waiting.
  std::unique_ptr<Readback> (*read_back)(const Tensor& t) = nullptr;
  /// Starts to fill a tensor from host memory (free to change on return) beside work that is queued before join(),
  /// which must not use it. Null where copy() is all there is.
  std::unique_ptr<Upload> (*upload)(const Tensor& to, const void* from) = nullptr;
  /// Shows every algorithm that the backend has for a call under the current settings, and drops it behind that: built
  /// plans take memory. The policy's choice comes first. Ends early where `visit` returns false.
  void (*conv_candidates)(const ConvCall& call, const std::function<bool(const ConvCandidate&)>& visit) = nullptr;
  /// Elements of a call's result, computed from the definition in f64, and what out has at these places (indices in the
  /// order of memory): expected and found are f64[places.size()] on the host.
  void (*conv_reference)(const ConvCall& call, std::span<const std::int64_t> places, std::span<double> expected,
                         std::span<double> found) = nullptr;
  /// conv_plans() and use_conv_plans() of conv.hpp; the notices since the last call.
  ConvPlans (*conv_plans)(int index) = nullptr;
  void (*use_conv_plans)(int index, ConvPlans plans) = nullptr;
  std::vector<std::string> (*take_conv_notices)() = nullptr;
  /// Seconds by the device's own clock that what `work` queues takes.
  double (*time)(int index, const std::function<void()>& work) = nullptr;
  /// Name and version of what the backend stands on, for `cuttle doctor`. May be null.
  std::vector<std::pair<std::string, std::string>> (*facts)() = nullptr;
};

/// The backend of a kind, registered on first use. Throws DeviceError saying why where there is none.
Backend& backend(DeviceKind kind);
inline const Kernels& kernels(const Tensor& t) { return backend(t.device().kind).kernels; }

void register_cpu(Backend& backend);
/// Returns why there is no CUDA, or an empty string. cuda/ defines it; src/no_cuda.cpp does where that is not built.
std::string register_cuda(Backend& backend);

}  // namespace cuttle
