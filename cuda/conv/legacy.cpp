#include "cuda/conv/legacy.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>

#include "cuda/check.hpp"
#include "cuda/kernels/gemm.hpp"
#include "cuttle/error.hpp"

namespace cuttle::cuda {

namespace {

using TensorDescription = Handle<cudnnTensorDescriptor_t, cudnnDestroyTensorDescriptor>;
using FilterDescription = Handle<cudnnFilterDescriptor_t, cudnnDestroyFilterDescriptor>;
using ConvDescription = Handle<cudnnConvolutionDescriptor_t, cudnnDestroyConvolutionDescriptor>;

// A name's place in its list is cuDNN's number.
static_assert(CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM == 1 && CUDNN_CONVOLUTION_FWD_ALGO_COUNT == 8);
static_assert(CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED == 5 && CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT == 6);
static_assert(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT == 2 && CUDNN_CONVOLUTION_BWD_FILTER_ALGO_FFT_TILING == 6);

bool is_deterministic(Pass pass, int id) {
  if (pass == Pass::backward_data) return id != CUDNN_CONVOLUTION_BWD_DATA_ALGO_0;
  return pass == Pass::forward ||
         (id != CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0 && id != CUDNN_CONVOLUTION_BWD_FILTER_ALGO_3);
}

/// cuDNN's number of a name, or -1.
int id_of(Pass pass, std::string_view name) {
  const std::span<const std::string_view> names = legacy_algorithms(pass);
  const auto at = std::ranges::find(names, name);
  return at == names.end() ? -1 : static_cast<int>(at - names.begin());
}

std::string name_of_algorithm(Pass pass, int id) {
  const std::span<const std::string_view> names = legacy_algorithms(pass);
  const auto i = static_cast<std::size_t>(id);
  return i < names.size() ? std::string(names[i]) : fmt::format("algorithm {}", id);
}

cudnnDataType_t cudnn_type(DType dtype) {
  switch (dtype) {
    case DType::f16: return CUDNN_DATA_HALF;
    case DType::bf16: return CUDNN_DATA_BFLOAT16;
    default: return CUDNN_DATA_FLOAT;
  }
}

class LegacyRunner final : public ConvRunner {
 public:
  explicit LegacyRunner(const ConvKey& key)
      : pass_(key.which()), accumulate_(key.accumulate != 0), relu_(key.relu != 0) {
    const cudnnTensorFormat_t format = key.order() == Layout::nhwc ? CUDNN_TENSOR_NHWC : CUDNN_TENSOR_NCHW;
    const cudnnDataType_t type = cudnn_type(key.type());
    set(x_, format, type, key.x);
    set(y_, format, type, key.y);
    cudnnFilterDescriptor_t filter = nullptr;
    CUTTLE_CUDNN(cudnnCreateFilterDescriptor(&filter));
    w_.reset(filter);
    CUTTLE_CUDNN(cudnnSetFilter4dDescriptor(filter, type, format, blas_size(key.w[0]), blas_size(key.w[1]),
                                            blas_size(key.w[2]), blas_size(key.w[3])));
    cudnnConvolutionDescriptor_t conv = nullptr;
    CUTTLE_CUDNN(cudnnCreateConvolutionDescriptor(&conv));
    conv_.reset(conv);
    CUTTLE_CUDNN(cudnnSetConvolution2dDescriptor(
        conv, blas_size(key.padding[0]), blas_size(key.padding[1]), blas_size(key.stride[0]), blas_size(key.stride[1]),
        blas_size(key.dilation[0]), blas_size(key.dilation[1]), CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
    CUTTLE_CUDNN(cudnnSetConvolutionGroupCount(conv, blas_size(key.groups)));
    set_math(key.exact() ? CUDNN_FMA_MATH : key.type() == DType::f32 ? CUDNN_DEFAULT_MATH : CUDNN_TENSOR_OP_MATH);
  }

  void set_math(cudnnMathType_t math) { CUTTLE_CUDNN(cudnnSetConvolutionMathType(conv_.get(), math)); }

  /// Fixes the algorithm and asks for its workspace; throws CudnnError if it does not take this convolution.
  void choose(cudnnHandle_t handle, int id) {
    id_ = id;
    switch (pass_) {
      case Pass::forward:
        CUTTLE_CUDNN(cudnnGetConvolutionForwardWorkspaceSize(handle, x_.get(), w_.get(), conv_.get(), y_.get(),
                                                             static_cast<cudnnConvolutionFwdAlgo_t>(id), &workspace_));
        return;
      case Pass::backward_data:
        CUTTLE_CUDNN(cudnnGetConvolutionBackwardDataWorkspaceSize(handle, w_.get(), y_.get(), conv_.get(), x_.get(),
                                                                  static_cast<cudnnConvolutionBwdDataAlgo_t>(id),
                                                                  &workspace_));
        return;
      case Pass::backward_filter:
        CUTTLE_CUDNN(cudnnGetConvolutionBackwardFilterWorkspaceSize(handle, x_.get(), y_.get(), conv_.get(), w_.get(),
                                                                    static_cast<cudnnConvolutionBwdFilterAlgo_t>(id),
                                                                    &workspace_));
    }
  }

  struct Proposal {
    int id;
    cudnnStatus_t status;
    bool deterministic;
    cudnnMathType_t math;
  };

  /// What cuDNN's heuristic says of every algorithm, best first.
  std::vector<Proposal> propose(cudnnHandle_t handle) const {
    switch (pass_) {
      case Pass::forward: {
        cudnnConvolutionFwdAlgoPerf_t found[2 * CUDNN_CONVOLUTION_FWD_ALGO_COUNT];
        int count = 0;
        CUTTLE_CUDNN(cudnnGetConvolutionForwardAlgorithm_v7(handle, x_.get(), w_.get(), conv_.get(), y_.get(),
                                                            std::size(found), &count, found));
        return proposals(std::span(found, static_cast<std::size_t>(count)));
      }
      case Pass::backward_data: {
        cudnnConvolutionBwdDataAlgoPerf_t found[2 * CUDNN_CONVOLUTION_BWD_DATA_ALGO_COUNT];
        int count = 0;
        CUTTLE_CUDNN(cudnnGetConvolutionBackwardDataAlgorithm_v7(handle, w_.get(), y_.get(), conv_.get(), x_.get(),
                                                                 std::size(found), &count, found));
        return proposals(std::span(found, static_cast<std::size_t>(count)));
      }
      case Pass::backward_filter: break;
    }
    cudnnConvolutionBwdFilterAlgoPerf_t found[2 * CUDNN_CONVOLUTION_BWD_FILTER_ALGO_COUNT];
    int count = 0;
    CUTTLE_CUDNN(cudnnGetConvolutionBackwardFilterAlgorithm_v7(handle, x_.get(), y_.get(), conv_.get(), w_.get(),
                                                               std::size(found), &count, found));
    return proposals(std::span(found, static_cast<std::size_t>(count)));
  }

  void run(Context& context, const ConvOperands& o) const override {
    const float one = 1, beta = accumulate_ ? 1 : 0;
    const Tensor scratch = scratch_bytes(context.index(), workspace_);
    void* workspace = scratch.defined() ? scratch.raw_mutable_data() : nullptr;
    const cudnnHandle_t handle = context.cudnn();
    const void *a = o.a.raw_data(), *b = o.b.raw_data();
    void* out = o.out.raw_mutable_data();
    switch (pass_) {
      case Pass::forward:
        CUTTLE_CUDNN(cudnnConvolutionForward(handle, &one, x_.get(), a, w_.get(), b, conv_.get(),
                                             static_cast<cudnnConvolutionFwdAlgo_t>(id_), workspace, workspace_, &beta,
                                             y_.get(), out));
        add_bias_relu(o, relu_);
        return;
      case Pass::backward_data:
        CUTTLE_CUDNN(cudnnConvolutionBackwardData(handle, &one, w_.get(), b, y_.get(), a, conv_.get(),
                                                  static_cast<cudnnConvolutionBwdDataAlgo_t>(id_), workspace,
                                                  workspace_, &beta, x_.get(), out));
        return;
      case Pass::backward_filter:
        CUTTLE_CUDNN(cudnnConvolutionBackwardFilter(handle, &one, x_.get(), b, y_.get(), a, conv_.get(),
                                                    static_cast<cudnnConvolutionBwdFilterAlgo_t>(id_), workspace,
                                                    workspace_, &beta, w_.get(), out));
    }
  }

  std::size_t workspace_bytes() const override { return workspace_; }
  std::string api() const override { return "legacy"; }
  std::string name() const override { return name_of_algorithm(pass_, id_); }
  std::string label() const override { return "legacy " + name(); }

 private:
  static void set(TensorDescription& description, cudnnTensorFormat_t format, cudnnDataType_t type,
                  const std::int64_t (&sizes)[4]) {
    cudnnTensorDescriptor_t made = nullptr;
    CUTTLE_CUDNN(cudnnCreateTensorDescriptor(&made));
    description.reset(made);
    CUTTLE_CUDNN(cudnnSetTensor4dDescriptor(made, format, type, blas_size(sizes[0]), blas_size(sizes[1]),
                                            blas_size(sizes[2]), blas_size(sizes[3])));
  }

  template <class Perf> static std::vector<Proposal> proposals(std::span<const Perf> found) {
    std::vector<Proposal> list;
    for (const Perf& p : found) {
      list.push_back({static_cast<int>(p.algo), p.status, p.determinism == CUDNN_DETERMINISTIC, p.mathType});
    }
    return list;
  }
  template <class Perf> static std::vector<Proposal> proposals(std::span<Perf> found) {
    return proposals(std::span<const Perf>(found));
  }

  Pass pass_;
  bool accumulate_, relu_;
  int id_ = 0;
  std::size_t workspace_ = 0;
  TensorDescription x_, y_;
  FilterDescription w_;
  ConvDescription conv_;
};

/// Fixes an algorithm where the key's limits allow it.
bool accept(LegacyRunner& runner, cudnnHandle_t handle, int id, bool deterministic, const ConvKey& key, Tried& tried) {
  const std::string name = "legacy " + name_of_algorithm(key.which(), id);
  if (tried.failed.contains(name)) return false;
  if (key.deterministic && !deterministic) {
    tried.attempts.add(name, "it is not deterministic");
    return false;
  }
  try {
    runner.choose(handle, id);
  } catch (const CudnnError& error) {
    tried.attempts.add(name, error.cause());
    return false;
  }
  if (key.fits(runner.workspace_bytes())) return true;
  tried.attempts.add(name, Attempts::too_large(runner.workspace_bytes(), key.workspace_limit));
  return false;
}

}  // namespace

bool is_legacy_name(Pass pass, std::string_view name) { return id_of(pass, name) >= 0; }

ConvRunnerPtr legacy_runner_of(Context& context, const ConvKey& key, std::string_view name, Tried& tried) {
  const int id = id_of(key.which(), name);
  try {
    auto runner = std::make_unique<LegacyRunner>(key);
    if (accept(*runner, context.cudnn(), id, is_deterministic(key.which(), id), key, tried)) return runner;
  } catch (const Error& error) {
    tried.attempts.add(fmt::format("legacy {}", name), error.cause());
  }
  return nullptr;
}

ConvRunnerPtr legacy_runner(Context& context, const ConvKey& key, Tried& tried) {
  try {
    auto runner = std::make_unique<LegacyRunner>(key);
    for (const LegacyRunner::Proposal& proposal : runner->propose(context.cudnn())) {
      if (proposal.status != CUDNN_STATUS_SUCCESS) {
        tried.attempts.add("legacy " + name_of_algorithm(key.which(), proposal.id),
                           cudnnGetErrorString(proposal.status));
        continue;
      }
      if (key.exact() && proposal.math != CUDNN_FMA_MATH && proposal.math != CUDNN_DEFAULT_MATH) continue;
      runner->set_math(key.exact() ? CUDNN_FMA_MATH : proposal.math);
      if (accept(*runner, context.cudnn(), proposal.id, proposal.deterministic, key, tried)) return runner;
    }
  } catch (const Error& error) {
    tried.attempts.add("legacy API", error.cause());
  }
  return nullptr;
}

}  // namespace cuttle::cuda
