#include <limits>

#include "core/capture.hpp"
#include "cuda/twin.hpp"

using namespace cuttle;
using namespace cuttle::test;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr DType kGradTypes[] = {DType::f32, DType::f16, DType::bf16};

/// More parameters than one launch takes, of odd sizes around those of chunks, some large, some at odd addresses.
std::vector<std::int64_t> odd_sizes() {
  std::vector<std::int64_t> sizes{1, 2, 3, 4, 5, 4095, 4096, 4097, 8192, 12'345, 200'003};
  for (std::int64_t i = 0; i < 400; ++i) sizes.push_back(1 + i * 37 % 301);
  return sizes;
}

/// The parameters of a model on both devices, in f64 on the CPU.
struct Twins {
  std::vector<std::int64_t> sizes = odd_sizes();
  std::vector<Tensor> exact, narrow;

  static std::int64_t offset(std::size_t i) { return i % 5 == 1 ? 1 : 0; }

  /// seed 0: zeros.
  explicit Twins(unsigned seed, bool low = false) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const Values values = seed == 0 ? Values(static_cast<std::size_t>(sizes[i]), 0)
                                      : random_values(sizes[i], seed + static_cast<unsigned>(i));
      const Tensor host = rounded(values, {sizes[i]}, low ? kGradTypes[i % 3] : DType::f32);
      exact.push_back(host.to(DType::f64));
      narrow.push_back(upload(host, offset(i)));
    }
  }
  void check() const {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      CAPTURE(i);
      const Values wanted = from(exact[i]);
      CHECK(error_of(from(narrow[i]), wanted, std::max(largest(wanted), 1.0)) < 1e-5);
    }
  }
};

/// None, f16 or bf16 by turns.
std::vector<Tensor> copies_of(const Twins& params) {
  std::vector<Tensor> copies;
  for (std::size_t i = 0; i < params.sizes.size(); ++i) {
    const bool none = i % 3 == 0;
    copies.push_back(none ? Tensor() : output({params.sizes[i]}, kGradTypes[i % 3], Layout::nhwc, Twins::offset(i)));
  }
  return copies;
}

void check_copies(const Twins& params, const std::vector<Tensor>& copies) {
  for (std::size_t i = 0; i < copies.size(); ++i) {
    if (!copies[i].defined()) continue;
    CAPTURE(i);
    CHECK(from(copies[i]) == from(params.narrow[i].to(kCpu).to(copies[i].dtype())));
  }
}

std::vector<double> decays(std::size_t count) {
  std::vector<double> decay;
  for (std::size_t i = 0; i < count; ++i) decay.push_back(0.01 * static_cast<double>(i % 3));
  return decay;
}

/// A scalar on both devices.
struct Scalar {
  Tensor host, device;
  Scalar(double value, DType dtype) : host(Tensor::scalar(value, {dtype})), device(host.to(gpu())) {}
};

/// Five steps of which the third is skipped; step(kernels, update, twin lists of state).
template <class Step> void check_steps(std::size_t states, Step step) {
  Twins params(1);
  std::vector<Twins> state;
  for (std::size_t i = 0; i < states; ++i) state.emplace_back(0);
  const std::vector<Tensor> copies = copies_of(params);
  const std::vector<double> decay = decays(params.sizes.size());
  const Scalar lr(0.125, DType::f32), count(0, DType::i64);
  const Scalar factors[] = {
      {0.25, DType::f32}, {4, DType::f32}, {kInf, DType::f32}, {kNan, DType::f32}, {1, DType::f32}};
  const auto lists = [&](bool on_device) {
    std::vector<std::vector<Tensor>> all;
    for (const Twins& s : state) all.push_back(on_device ? s.narrow : s.exact);
    return all;
  };
  for (unsigned t = 0; t < 5; ++t) {
    CAPTURE(t);
    const Twins grads(1000 * (t + 1), true);
    step(cpu(), Kernels::Update{params.exact, grads.exact, {}, decay, lr.host, count.host, factors[t].host},
         lists(false));
    step(on_gpu(),
         Kernels::Update{params.narrow, grads.narrow, copies, decay, lr.device, count.device, factors[t].device},
         lists(true));
    CHECK(count.device.item<std::int64_t>() == count.host.item<std::int64_t>());
    params.check();
    for (const Twins& s : state) s.check();
    check_copies(params, copies);
  }
  // No factor is a factor of 1.
  const Twins grads(77, true);
  step(cpu(), Kernels::Update{params.exact, grads.exact, {}, decay, lr.host, count.host, {}}, lists(false));
  step(on_gpu(), Kernels::Update{params.narrow, grads.narrow, {}, decay, lr.device, count.device, {}}, lists(true));
  params.check();
}

}  // namespace

TEST_CASE("cuda: sgd_step equals the CPU's for hundreds of tensors, gradients of every dtype and copies") {
  for (const Kernels::SgdHyper& hyper : {Kernels::SgdHyper{0, 0, false}, Kernels::SgdHyper{0.9, 0, false},
                                         Kernels::SgdHyper{0.9, 0.5, false}, Kernels::SgdHyper{0.8, 0, true}}) {
    CAPTURE(hyper.momentum);
    CAPTURE(hyper.nesterov);
    check_steps(hyper.momentum == 0 ? 0 : 1, [&](const Kernels& k, const Kernels::Update& update, auto state) {
      k.sgd_step(update, state.empty() ? Tensors() : Tensors(state[0]), hyper);
    });
  }
}

TEST_CASE("cuda: adamw_step equals the CPU's for hundreds of tensors, gradients of every dtype and copies") {
  check_steps(2, [](const Kernels& k, const Kernels::Update& update, auto state) {
    k.adamw_step(update, state[0], state[1], {0.9, 0.99, 1e-6});
  });
}

TEST_CASE("cuda: a skipped step leaves every byte as it was, and the first sgd_step does not read the buffer") {
  const std::vector<Tensor> param{Tensor::full({9}, 1, {.device = gpu()})},
      grad{Tensor::full({9}, 2, {.device = gpu()})}, buffer{Tensor::full({9}, kNan, {.device = gpu()})},
      copy{Tensor::full({9}, 5, {.dtype = DType::f16, .device = gpu()})};
  const std::vector<double> decay{0};
  const Scalar lr(0.5, DType::f32), step(0, DType::i64), bad(kNan, DType::f32);
  on_gpu().sgd_step({param, grad, copy, decay, lr.device, step.device, bad.device}, buffer, {0.9, 0, false});
  CHECK(from(param[0]) == Values(9, 1));
  CHECK(from(copy[0]) == Values(9, 5));
  CHECK(std::isnan(from(buffer[0])[0]));
  CHECK(step.device.item<std::int64_t>() == 0);
  on_gpu().sgd_step({param, grad, copy, decay, lr.device, step.device, {}}, buffer, {0.9, 0, false});
  CHECK(from(param[0]) == Values(9, 0));
  CHECK(from(copy[0]) == Values(9, 0));
  CHECK(from(buffer[0]) == Values(9, 2));
}

TEST_CASE("cuda: global_norm and clip_by_norm equal the CPU's over hundreds of tensors, the same bits every time") {
  Twins grads(5, true);
  const Tensor norm_exact = Tensor::empty({}), norm = output({}, DType::f32);
  cpu().global_norm(grads.exact, norm_exact);
  on_gpu().global_norm(grads.narrow, norm);
  const double exact = norm_exact.item<double>(), found = norm.item<double>();
  CHECK(std::abs(found - exact) < 1e-6 * exact);
  for (int i = 0; i < 3; ++i) {
    on_gpu().global_norm(grads.narrow, norm);
    CHECK(norm.item<double>() == found);
  }
  cpu().clip_by_norm(grads.exact, norm_exact, 2 * exact);
  on_gpu().clip_by_norm(grads.narrow, norm, 2 * exact);
  grads.check();  // both left alone
  cpu().clip_by_norm(grads.exact, norm_exact, 3);
  on_gpu().clip_by_norm(grads.narrow, norm, 3);
  for (std::size_t i = 0; i < grads.sizes.size(); ++i) {
    CAPTURE(i);
    CHECK(excess(grads.narrow[i], from(grads.exact[i])) <= 1);
  }
  on_gpu().global_norm(std::vector<Tensor>{Tensor::full({2}, 3e30, {.device = gpu()})}, norm);
  CHECK(norm.item<double>() == doctest::Approx(3e30 * std::sqrt(2)).epsilon(1e-6));
  on_gpu().global_norm({}, norm);
  CHECK(norm.item<double>() == 0);
}

TEST_CASE("cuda: the factor of the gradients and the loss scale equal the CPU's") {
  const Kernels::LossScaleRule rule{.interval = 2, .least = 4, .most = 64};
  const Scalar scale(16, DType::f32), factor(0, DType::f32), norm(0, DType::f32);
  const Tensor counts_host = Tensor::zeros({2}, {DType::i64}), counts = Tensor::zeros({2}, {DType::i64, gpu()});
  const double norms[] = {80, 80, 8000, 1, 1, kInf, kNan, 3, kInf, kInf, kInf, kInf, 5, 5, 5};
  for (const double max_norm : {0.0, 2.0}) {
    for (const double value : norms) {
      CAPTURE(value);
      const std::vector<Tensor> grads{Tensor::full({1}, value)}, grads_there{grads[0].to(gpu())};
      cpu().gradient_factor(grads, norm.host, scale.host, counts_host, max_norm, rule, factor.host);
      on_gpu().gradient_factor(grads_there, norm.device, scale.device, counts, max_norm, rule, factor.device);
      CHECK(scale.device.item<double>() == scale.host.item<double>());
      CHECK(counts.to_vector<std::int64_t>() == counts_host.to_vector<std::int64_t>());
      const Tensor wanted[] = {norm.host, factor.host}, found[] = {norm.device, factor.device};
      for (int i = 0; i < 2; ++i) CHECK(error_of(from(found[i]), from(wanted[i]), 1) < 1e-6);
    }
  }
  const std::vector<Tensor> grads{Tensor::full({1000}, 3, {.device = gpu()}), Tensor::full({7}, 4, {.device = gpu()})};
  const double exact = std::sqrt(9112.0);
  on_gpu().gradient_factor(grads, norm.device, {}, {}, 1, rule, factor.device);
  CHECK(norm.device.item<double>() == doctest::Approx(exact).epsilon(1e-6));
  CHECK(factor.device.item<double>() == doctest::Approx(1 / (exact + 1e-6)).epsilon(1e-6));
  on_gpu().gradient_factor({}, norm.device, {}, {}, 1, rule, factor.device);
  CHECK(norm.device.item<double>() == 0);
  CHECK(factor.device.item<double>() == 1);
}

TEST_CASE("cuda: a recorded optimizer step reads rate, count and factor at each replay") {
  const std::vector<Tensor> param{Tensor::full({5}, 1, {.device = gpu()})},
      grad{Tensor::full({5}, 1, {.device = gpu()})};
  const std::vector<double> decay{0};
  const Tensor lr = Tensor::full({}, 0.5, {.device = gpu()}), step = Tensor::zeros({}, {DType::i64, gpu()}),
               factor = Tensor::full({}, 1, {.device = gpu()}), norm = output({}, DType::f32);
  const auto work = [&] {
    on_gpu().global_norm(grad, norm);
    on_gpu().sgd_step({param, grad, {}, decay, lr, step, factor}, {}, {0, 0, false});
  };
  work();
  CHECK(from(param[0]) == Values(5, 0.5));
  const memory::PoolId pool = memory::allocator(gpu()).create_private_pool();
  {
    std::unique_ptr<CapturedWork> recorded;
    {
      const AllocationScope scope(gpu(), pool);
      recorded = testing::gpu_backend().capture(gpu().index, work);
    }
    recorded->replay();
    CHECK(from(param[0]) == Values(5, 0));
    Tensor(lr).fill_(0.25);
    Tensor(factor).fill_(kInf);
    recorded->replay();
    CHECK(from(param[0]) == Values(5, 0));
    Tensor(factor).fill_(2);
    Tensor(grad[0]).fill_(3);
    recorded->replay();
    CHECK(from(param[0]) == Values(5, -1.5));
    CHECK(step.item<std::int64_t>() == 3);
    CHECK(norm.item<double>() == doctest::Approx(3 * std::sqrt(5)));
  }
  memory::allocator(gpu()).release_private_pool(pool);
}
