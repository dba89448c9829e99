#include "cuda/kernels/last_block.cuh"
#include "cuda/kernels/optim.hpp"
#include "cuda/kernels/tensor_table.cuh"
#include "cuda/runtime/counters.hpp"

namespace cuttle::cuda {

namespace {

using Table = TensorTable<1>;
constexpr int kBlocksEach = 8;  // of a multiprocessor

/// What gradient_factor does with the norm, by one thread.
struct FactorStep {
  float* factor = nullptr;  ///< null: only the norm is wanted
  float* scale = nullptr;   ///< may be null, and counts with it
  std::int64_t* counts = nullptr;
  double max_norm = 0;
  Kernels::LossScaleRule rule = {};

  __device__ void run(float& norm) const {
    if (!factor) return;
    const double inverse = scale ? 1 / static_cast<double>(*scale) : 1;
    const bool good = isfinite(norm);
    norm = static_cast<float>(norm * inverse);
    const double clip = max_norm > 0 ? fmin(1.0, max_norm / (norm + 1e-6)) : 1;
    *factor = good ? static_cast<float>(inverse * clip) : nanf("");
    if (!scale) return;

    double next = *scale;
    if (!good) {
      next *= rule.backoff;
      counts[0] = 0;
      ++counts[1];
    } else {
      counts[1] = 0;
      if (++counts[0] >= rule.interval) {
        next *= rule.growth;
        counts[0] = 0;
      }
    }
    *scale = static_cast<float>(fmin(fmax(next, rule.least), rule.most));
  }
};

/// Blocks of all launches write partials[first_partial + blockIdx.x]; the last of them adds them up. Squares are summed
/// in double, in which those of no f32 overflow.
__global__ void __launch_bounds__(kThreads, kBlocksEach)
    norm_kernel(const __grid_constant__ Table table, double* partials, unsigned first_partial, unsigned all_blocks,
                unsigned* counter, float* norm, FactorStep then) {
  __shared__ double shared[kThreads];
  double sum[1] = {};
  for_elements(table, [&]<int N>(const Table::Row& row, std::int64_t i) {
    float values[N];
    read(row.at[0], row.element[0], i, values);
#pragma unroll
    for (int j = 0; j < N; ++j) sum[0] += static_cast<double>(values[j]) * values[j];
  });
  const int thread = static_cast<int>(threadIdx.x);
  sum_rows<1>(sum, shared, thread, kThreads, 1);
  if (thread == 0) partials[first_partial + blockIdx.x] = sum[0];
  if (!is_last_block(counter, all_blocks)) return;
  sum[0] = 0;
  for (unsigned i = threadIdx.x; i < all_blocks; i += kThreads) sum[0] += __ldcg(partials + i);
  sum_rows<1>(sum, shared, thread, kThreads, 1);
  if (thread != 0) return;
  *norm = static_cast<float>(sqrt(sum[0]));
  then.run(*norm);
}

Table::Row row_of(const char* op, const Tensor& t) {
  Table::Row row;
  row.set(op, 0, t);
  row.count = t.numel();
  return row;
}

void norm_of(Tensors tensors, const Tensor& norm, const FactorStep& then) {
  const char* op = "gradient norm";
  const Context& c = context(norm);
  const auto row = [&](std::size_t i) { return row_of(op, tensors[i]); };
  unsigned all_blocks = 0;
  for_tables<1>(c, kBlocksEach, tensors.size(), row,
                [&](const Table&, unsigned blocks, bool) { all_blocks += blocks; });
  const unsigned most = std::max(1u, all_blocks);
  const Tensor partials = Tensor::empty({static_cast<std::int64_t>(most * sizeof(double))}, {DType::u8, norm.device()});
  unsigned first = 0;
  const auto launch = [&](const Table& table, unsigned blocks, bool) {
    norm_kernel<<<blocks, kThreads, 0, c.stream()>>>(table, pointer<double>(partials), first, most,
                                                     block_counters(c, 1), pointer<float>(norm), then);
    CUTTLE_LAUNCHED("gradient norm");
    first += blocks;
  };
  for_tables<1>(c, kBlocksEach, tensors.size(), row, launch);
  if (all_blocks == 0) launch({}, 1, true);
}

__global__ void __launch_bounds__(kThreads, kBlocksEach)
    clip_kernel(const __grid_constant__ Table table, const float* norm, double max_norm) {
  const double factor = max_norm / (*norm + 1e-6);
  if (factor >= 1) return;  // false for NaN: a norm that is NaN makes every gradient NaN, as in PyTorch
  const auto f = static_cast<float>(factor);
  for_elements(table, [&]<int N>(const Table::Row& row, std::int64_t i) {
    float values[N];
    read(row.at[0], row.element[0], i, values);
#pragma unroll
    for (int j = 0; j < N; ++j) values[j] *= f;
    write(row.at[0], row.element[0], i, values);
  });
}

void clip_by_norm(Tensors tensors, const Tensor& norm, double max_norm) {
  const Context& c = context(norm);
  const auto row = [&](std::size_t i) { return row_of("gradient clipping", tensors[i]); };
  for_tables<1>(c, kBlocksEach, tensors.size(), row, [&](const Table& table, unsigned blocks, bool) {
    clip_kernel<<<blocks, kThreads, 0, c.stream()>>>(table, pointer<float>(norm), max_norm);
    CUTTLE_LAUNCHED("gradient clipping");
  });
}

void global_norm(Tensors tensors, const Tensor& norm) { norm_of(tensors, norm, {}); }

void gradient_factor(Tensors gradients, const Tensor& norm, const Tensor& scale, const Tensor& counts, double max_norm,
                     const Kernels::LossScaleRule& rule, const Tensor& factor) {
  norm_of(
      gradients, norm,
      {pointer<float>(factor), pointer_or_null<float>(scale), pointer_or_null<std::int64_t>(counts), max_norm, rule});
}

}  // namespace

void register_gradient_norm(Kernels& k) {
  k.global_norm = global_norm;
  k.clip_by_norm = clip_by_norm;
  k.gradient_factor = gradient_factor;
}

}  // namespace cuttle::cuda
