#include "cuda/kernels/optim.hpp"

#include "cuda/kernels/last_block.cuh"
#include "cuda/kernels/tensor_table.cuh"
#include "cuda/register.hpp"
#include "cuda/runtime/counters.hpp"

namespace cuttle::cuda {

namespace {

/// What a step reads on the device, and counts there.
struct StepScalars {
  const float* lr;
  std::int64_t* step;   ///< updates before this one
  const float* factor;  ///< may be null: 1
  unsigned* counter;    ///< null but in the last launch of an update

  StepScalars(const Context& context, const Kernels::Update& update, bool last_launch)
      : lr(pointer<float>(update.lr)),
        step(pointer<std::int64_t>(update.step)),
        factor(pointer_or_null<float>(update.factor)),
        counter(last_launch ? block_counters(context, 1) : nullptr) {}
  __device__ float gradient_factor() const { return factor ? *factor : 1.0f; }
  /// Counts the update once every block has read the number before it. Every thread of every block must call it.
  __device__ void count_update() const {
    if (counter && is_last_block(counter, gridDim.x) && threadIdx.x == 0) ++*step;
  }
};

constexpr int kSgdBlocks = 5, kAdamWBlocks = 4;  // of a multiprocessor

// The columns of a table.
constexpr int kParam = 0, kGrad = 1, kCopy = 2, kFirst = 3, kSecond = 4;
using SgdTable = TensorTable<4>;
using AdamWTable = TensorTable<5>;

struct SgdConstants {
  float momentum, gain;
  bool nesterov;
};

__global__ void __launch_bounds__(kThreads, kSgdBlocks)
    sgd_kernel(const __grid_constant__ SgdTable table, StepScalars scalars, SgdConstants c) {
  const float factor = scalars.gradient_factor(), lr = *scalars.lr;
  if (!isfinite(factor)) return;
  const bool first = *scalars.step == 0;
  for_elements(table, [&]<int N>(const SgdTable::Row& row, std::int64_t i) {
    float p[N], g[N], b[N] = {};
    read_as<float>(row.at[kParam], i, p);
    read(row.at[kGrad], row.element[kGrad], i, g);
    const bool has_buffer = row.at[kFirst] != nullptr;
    if (has_buffer && !first) read_as<float>(row.at[kFirst], i, b);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float gradient = factor * g[j] + row.decay * p[j];
      b[j] = first || !has_buffer ? gradient : c.momentum * b[j] + c.gain * gradient;
      p[j] -= lr * (c.nesterov ? gradient + c.momentum * b[j] : b[j]);
    }
    write_as<float>(row.at[kParam], i, p);
    if (has_buffer) write_as<float>(row.at[kFirst], i, b);
    write(row.at[kCopy], row.element[kCopy], i, p);
  });
  scalars.count_update();
}

struct AdamWConstants {
  double beta1, beta2;
  float eps;
};

__global__ void __launch_bounds__(kThreads, kAdamWBlocks)
    adamw_kernel(const __grid_constant__ AdamWTable table, StepScalars scalars, AdamWConstants c) {
  __shared__ float step_size, root_scale;
  const float factor = scalars.gradient_factor();
  if (!isfinite(factor)) return;
  const double lr = *scalars.lr;
  if (threadIdx.x == 0) {
    const auto t = static_cast<double>(*scalars.step + 1);
    step_size = static_cast<float>(lr / (1 - pow(c.beta1, t)));
    root_scale = static_cast<float>(1 / sqrt(1 - pow(c.beta2, t)));
  }
  __syncthreads();
  const float beta1 = static_cast<float>(c.beta1), gain1 = static_cast<float>(1 - c.beta1);
  const float beta2 = static_cast<float>(c.beta2), gain2 = static_cast<float>(1 - c.beta2);
  for_elements(table, [&]<int N>(const AdamWTable::Row& row, std::int64_t i) {
    float p[N], g[N], m[N], v[N];
    read_as<float>(row.at[kParam], i, p);
    read(row.at[kGrad], row.element[kGrad], i, g);
    read_as<float>(row.at[kFirst], i, m);
    read_as<float>(row.at[kSecond], i, v);
    const float keep = static_cast<float>(1 - lr * row.decay);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      const float gradient = factor * g[j];
      m[j] = beta1 * m[j] + gain1 * gradient;
      v[j] = beta2 * v[j] + gain2 * gradient * gradient;
      p[j] = keep * p[j] - step_size * m[j] / (sqrtf(v[j]) * root_scale + c.eps);
    }
    write_as<float>(row.at[kParam], i, p);
    write_as<float>(row.at[kFirst], i, m);
    write_as<float>(row.at[kSecond], i, v);
    write(row.at[kCopy], row.element[kCopy], i, p);
  });
  scalars.count_update();
}

/// The columns that both optimizers have.
template <class Row> Row row_of(const char* op, const Kernels::Update& update, std::size_t i) {
  const Tensor& p = update.params[i];
  if (p.dtype() != DType::f32) throw DtypeError(std::string(op) + ": no CUDA kernel for " + p.str(), "use f32");
  Row row;
  row.set(op, kParam, p);
  row.set(op, kGrad, update.grads[i]);
  row.set(op, kCopy, update.copies.empty() ? Tensor() : update.copies[i]);
  row.decay = static_cast<float>(update.decay[i]);
  row.count = p.numel();
  return row;
}

void sgd_step(const Kernels::Update& update, Tensors buffers, const Kernels::SgdHyper& hyper) {
  const Context& c = context(update.lr);
  const SgdConstants constants{static_cast<float>(hyper.momentum), static_cast<float>(1 - hyper.dampening),
                               hyper.nesterov};
  const auto row = [&](std::size_t i) {
    auto row = row_of<SgdTable::Row>("sgd step", update, i);
    row.set("sgd step", kFirst, buffers.empty() ? Tensor() : buffers[i]);
    return row;
  };
  for_tables<4>(c, kSgdBlocks, update.params.size(), row, [&](const SgdTable& table, unsigned blocks, bool is_last) {
    sgd_kernel<<<blocks, kThreads, 0, c.stream()>>>(table, StepScalars(c, update, is_last), constants);
    CUTTLE_LAUNCHED("sgd step");
  });
}

void adamw_step(const Kernels::Update& update, Tensors exp_avg, Tensors exp_avg_sq, const Kernels::AdamWHyper& hyper) {
  const Context& c = context(update.lr);
  const AdamWConstants constants{hyper.beta1, hyper.beta2, static_cast<float>(hyper.eps)};
  const auto row = [&](std::size_t i) {
    auto row = row_of<AdamWTable::Row>("adamw step", update, i);
    row.set("adamw step", kFirst, exp_avg[i]);
    row.set("adamw step", kSecond, exp_avg_sq[i]);
    return row;
  };
  for_tables<5>(c, kAdamWBlocks, update.params.size(), row,
                [&](const AdamWTable& table, unsigned blocks, bool is_last) {
                  adamw_kernel<<<blocks, kThreads, 0, c.stream()>>>(table, StepScalars(c, update, is_last), constants);
                  CUTTLE_LAUNCHED("adamw step");
                });
}

}  // namespace

void register_optim(Kernels& k) {
  k.sgd_step = sgd_step;
  k.adamw_step = adamw_step;
  register_gradient_norm(k);
}

}  // namespace cuttle::cuda
