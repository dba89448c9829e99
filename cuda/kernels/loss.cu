#include "cuda/kernels/classify.cuh"
#include "cuda/kernels/last_block.cuh"
#include "cuda/kernels/vec.cuh"

namespace cuttle::cuda {

namespace {

__device__ unsigned blocks_arrived;  // of the launch in progress; see finish_grid_sum

/// What a grid of rows adds up: a thread brings the sum of the rows it answers for.
template <class Total, class Finish> __device__ void add_rows(Total mine, Total* partials, Finish finish) {
  finish_grid_sum(block_sum(mine), partials, &blocks_arrived, finish);
}

/// Whether element (value, k) comes before the target's: the largest wins, the first of equals, NaN above all.
__device__ bool beats(float value, std::int64_t k, float of_target, std::int64_t target) {
  if (of_target != of_target) return value != value && k < target;
  return value != value || value > of_target || (value == of_target && k < target);
}

/// Whether nothing beats the target; nothing is equal to one outside [0, K). For all threads of the row, all of which
/// must call it.
template <bool kBlock, class T>
__device__ bool is_correct(const RowThreads<kBlock>& threads, const T* x, std::int64_t classes, std::int64_t target) {
  int beaten = target < 0 || target >= classes;
  if (!beaten) {
    const float of_target = float(x[target]);
    for (std::int64_t k = threads.lane(); k < classes; k += threads.lanes()) {
      beaten |= beats(float(x[k]), k, of_target, target);
    }
  }
  return threads.sum(beaten) == 0;
}

/// The loss of a row is -sum over k of q_k log_softmax(x)_k, where q is 1 - smoothing at the target plus smoothing/K
/// everywhere. The last block adds up the blocks: one launch, in which answers are counted too (in double, exact to
/// 2^53) where `correct` is given. Nobody waits to be told of a target outside [0, K): it makes the loss NaN.
template <class T, bool kBlock>
__global__ void cross_entropy_kernel(const T* logits, const std::int64_t* targets, std::int64_t rows,
                                     std::int64_t classes, double smoothing, double divisor, float* lse_out,
                                     double2* partials, float* loss, std::int64_t* correct) {
  const RowThreads<kBlock> threads;
  double mine = 0, hits = 0;
  for (std::int64_t row = threads.first_row(); row < rows; row += threads.row_step()) {
    const T* x = logits + row * classes;
    const LogSumExp lse = log_sum_exp(threads, x, classes);
    float smooth = 0;
    if (smoothing != 0) {
      for (std::int64_t k = threads.lane(); k < classes; k += threads.lanes()) smooth += float(x[k]) - lse.max;
      smooth = threads.sum(smooth);
    }
    const std::int64_t target = targets[row];
    const bool hit_target = correct && is_correct(threads, x, classes, target);
    if (threads.lane() != 0) continue;
    hits += hit_target;
    const bool valid = target >= 0 && target < classes;
    // x - max first: it is exact near the maximum, where the loss is small
    const double hit = valid ? double(float(x[target]) - lse.max) : double(NAN);
    double expected = (1 - smoothing) * hit;
    if (smoothing != 0) expected += smoothing * (double(smooth) / double(classes));
    lse_out[row] = lse.max + lse.log_sum();
    mine += double(lse.log_sum()) - expected;
  }
  mine = block_sum(mine);
  hits = block_sum(hits);
  if (threadIdx.x == 0) partials[blockIdx.x] = {mine, hits};
  if (!is_last_block(&blocks_arrived, gridDim.x)) return;
  mine = hits = 0;
  for (unsigned b = threadIdx.x; b < gridDim.x; b += blockDim.x) {
    const double2 part = __ldcg(partials + b);
    mine += part.x;
    hits += part.y;
  }
  mine = block_sum(mine);
  hits = block_sum(hits);
  if (threadIdx.x != 0) return;
  *loss = float(mine / divisor);
  if (correct) *correct = static_cast<std::int64_t>(hits);
}

void cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options, const Tensor& loss,
                   const Tensor& log_sum_exp, const Tensor& correct) {
  const std::int64_t rows = logits.size(0), classes = logits.size(1);
  const Context& c = context(logits);
  const RowLaunch launch(c, rows, classes);
  const Tensor partials = Tensor::empty({std::int64_t{launch.blocks} * 16}, {DType::u8, logits.device()});
  const double divisor = options.reduction == Reduction::mean ? static_cast<double>(rows) : 1.0;
  dispatch_floating("cross_entropy", logits, [&]<class T>(T) {
    const auto kernel = launch.wide ? cross_entropy_kernel<T, true> : cross_entropy_kernel<T, false>;
    kernel<<<launch.blocks, kThreads, 0, c.stream()>>>(pointer<T>(logits), pointer<std::int64_t>(targets), rows,
                                                       classes, options.label_smoothing, divisor,
                                                       pointer<float>(log_sum_exp), pointer<double2>(partials),
                                                       pointer<float>(loss), pointer_or_null<std::int64_t>(correct));
  });
  CUTTLE_LAUNCHED("cross_entropy");
}

/// (softmax(x) - q) * d_loss, divided by N for the mean; NaN in the row of a target outside [0, K).
template <class T, bool kBlock>
__global__ void cross_entropy_backward_kernel(const float* d_loss, const T* logits, const std::int64_t* targets,
                                              const float* lse, std::int64_t rows, std::int64_t classes, float hit,
                                              float smooth, float divisor, T* d_logits) {
  const RowThreads<kBlock> threads;
  const float factor = *d_loss / divisor;
  for (std::int64_t row = threads.first_row(); row < rows; row += threads.row_step()) {
    const std::int64_t target = targets[row];
    const bool valid = target >= 0 && target < classes;
    const float log_sum = valid ? lse[row] : NAN;
    for (std::int64_t k = threads.lane(); k < classes; k += threads.lanes()) {
      const float wanted = k == target ? hit : smooth;
      d_logits[row * classes + k] = T((expf(float(logits[row * classes + k]) - log_sum) - wanted) * factor);
    }
  }
}

void cross_entropy_backward(const Tensor& d_loss, const Tensor& logits, const Tensor& targets,
                            const Tensor& log_sum_exp, const CrossEntropyOptions& options, const Tensor& d_logits) {
  const std::int64_t rows = logits.size(0), classes = logits.size(1);
  const Context& c = context(logits);
  const RowLaunch launch(c, rows, classes);
  const double everywhere = options.label_smoothing / static_cast<double>(classes);
  const float hit = static_cast<float>(1 - options.label_smoothing + everywhere);
  const float smooth = static_cast<float>(everywhere);
  const float divisor = options.reduction == Reduction::mean ? static_cast<float>(rows) : 1.0f;
  dispatch_floating("cross_entropy backward", logits, [&]<class T>(T) {
    const auto kernel = launch.wide ? cross_entropy_backward_kernel<T, true> : cross_entropy_backward_kernel<T, false>;
    kernel<<<launch.blocks, kThreads, 0, c.stream()>>>(pointer<float>(d_loss), pointer<T>(logits),
                                                       pointer<std::int64_t>(targets), pointer<float>(log_sum_exp),
                                                       rows, classes, hit, smooth, divisor, pointer<T>(d_logits));
  });
  CUTTLE_LAUNCHED("cross_entropy backward");
}

template <class T, bool kBlock>
__global__ void correct_count_kernel(const T* logits, const std::int64_t* targets, std::int64_t rows,
                                     std::int64_t classes, long long* partials, std::int64_t* out) {
  const RowThreads<kBlock> threads;
  long long mine = 0;
  for (std::int64_t row = threads.first_row(); row < rows; row += threads.row_step()) {
    const T* x = logits + row * classes;
    const std::int64_t target = targets[row];
    if (is_correct(threads, x, classes, target) && threads.lane() == 0) ++mine;
  }
  add_rows(mine, partials, [out](long long total) { *out = total; });
}

void correct_count(const Tensor& logits, const Tensor& targets, const Tensor& out) {
  const std::int64_t rows = logits.size(0), classes = logits.size(1);
  const Context& c = context(logits);
  const RowLaunch launch(c, rows, classes);
  const Tensor partials = Tensor::empty({std::int64_t{launch.blocks} * 8}, {DType::u8, logits.device()});
  dispatch_floating("correct_count", logits, [&]<class T>(T) {
    const auto kernel = launch.wide ? correct_count_kernel<T, true> : correct_count_kernel<T, false>;
    kernel<<<launch.blocks, kThreads, 0, c.stream()>>>(pointer<T>(logits), pointer<std::int64_t>(targets), rows,
                                                       classes, pointer<long long>(partials),
                                                       pointer<std::int64_t>(out));
  });
  CUTTLE_LAUNCHED("correct_count");
}

}  // namespace

void register_loss(Kernels& k) {
  k.cross_entropy = cross_entropy;
  k.cross_entropy_backward = cross_entropy_backward;
  k.correct_count = correct_count;
}

}  // namespace cuttle::cuda
