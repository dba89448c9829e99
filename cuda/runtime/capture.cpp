#include <fmt/format.h>

#include <utility>

#include "cuda/check.hpp"
#include "cuda/runtime/backend.hpp"
#include "cuda/runtime/context.hpp"

namespace cuttle::cuda {

namespace {

using GraphHandle = Handle<cudaGraph_t, cudaGraphDestroy>;
using GraphExecHandle = Handle<cudaGraphExec_t, cudaGraphExecDestroy>;

class CapturedGraph final : public CapturedWork {
 public:
  CapturedGraph(Context& context, std::vector<std::shared_ptr<const void>> used, GraphExecHandle graph)
      : context_(&context), used_(std::move(used)), graph_(std::move(graph)) {}
  /// A replay in flight still reads the graph and its memory.
  ~CapturedGraph() override {
    if (cudaStreamSynchronize(context_->stream()) != cudaSuccess) cudaGetLastError();
  }
  void replay() override {
    context(context_->index()).refuse_recording("replaying a recorded step");
    CUTTLE_CUDA(cudaGraphLaunch(graph_.get(), context_->stream()));
  }

 private:
  Context* context_;
  std::vector<std::shared_ptr<const void>> used_;  ///< a plan takes its kernels along when it goes
  GraphExecHandle graph_;
};

/// The stream records while this lives. Whatever happens, it runs again afterwards.
class Recording {
 public:
  explicit Recording(Context& context) : context_(context) {
    context.refuse_recording("recording a step");
    // Memory that is taken away meanwhile cannot wait for the work that used it.
    CUTTLE_CUDA(cudaStreamSynchronize(context.stream()));
    context.begin_recording();
    // Relaxed: the recorded step may allocate, and so may the loader's thread. What cannot be replayed is refused
    // by Context::refuse_recording.
    const cudaError_t status = cudaStreamBeginCapture(context.stream(), cudaStreamCaptureModeRelaxed);
    if (status != cudaSuccess) {
      context.end_recording();
      CUTTLE_CUDA(status);
    }
  }
  ~Recording() {
    if (!ended_) end();
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  std::unique_ptr<CapturedWork> finish() {
    const cudaError_t status = end();
    if (status != cudaSuccess) {
      throw DeviceError(fmt::format("a step on cuda:{} did what cannot be recorded: {} ({})", context_.index(),
                                    cudaGetErrorString(status), cudaGetErrorName(status)));
    }
    cudaGraphExec_t exec = nullptr;
    CUTTLE_CUDA(cudaGraphInstantiate(&exec, graph_.get(), 0));
    GraphExecHandle owned(exec);
    CUTTLE_CUDA(cudaGraphUpload(exec, context_.stream()));  // the first replay need not
    return std::make_unique<CapturedGraph>(context_, std::move(used_), std::move(owned));
  }

 private:
  cudaError_t end() noexcept {
    ended_ = true;
    cudaGraph_t graph = nullptr;
    const cudaError_t status = cudaStreamEndCapture(context_.stream(), &graph);
    graph_.reset(graph);
    if (status != cudaSuccess) cudaGetLastError();
    used_ = context_.end_recording();
    return status;
  }

  Context& context_;
  bool ended_ = false;
  std::vector<std::shared_ptr<const void>> used_;
  GraphHandle graph_;
};

}  // namespace

std::unique_ptr<CapturedWork> capture(int index, const std::function<void()>& work) {
  Recording recording(context(index));
  work();
  return recording.finish();
}

}  // namespace cuttle::cuda
