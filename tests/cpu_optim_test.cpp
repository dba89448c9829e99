#include <limits>
#include <vector>

#include "support/cpu_kernel_util.hpp"

using namespace cuttle;
using namespace cuttle::test;

namespace {

constexpr std::int64_t kSizes[] = {1, 37, 40'009};
const std::vector<double> kDecay{0, 0.01, 0.1}, kNoDecay{0};

Tensor scalar_step(std::int64_t step) { return tensor<std::int64_t>({static_cast<double>(step)}, {}); }

/// Three parameters of different sizes and decay, with the same values in a list of double.
template <class T> struct Parameters {
  std::vector<Tensor> tensors;
  std::vector<Values> expected;

  explicit Parameters(unsigned seed) {
    for (const std::int64_t n : kSizes) add(random_values(n, seed++));
  }
  Parameters() {
    for (const std::int64_t n : kSizes) add(Values(static_cast<std::size_t>(n), 0));
  }
  void check() const {
    for (std::size_t i = 0; i < tensors.size(); ++i)
      CHECK(error_of(values<T>(tensors[i]), expected[i]) < tolerance<T>());
  }
  /// Calls body(list, element) for every element.
  template <class Body> void for_each(Body body) {
    for (std::size_t i = 0; i < expected.size(); ++i)
      for (std::size_t j = 0; j < expected[i].size(); ++j) body(i, j);
  }

 private:
  void add(const Values& v) {
    tensors.push_back(tensor<T>(v, {static_cast<std::int64_t>(v.size())}));
    expected.push_back(v);
  }
};

template <class T> void check_sgd(const Kernels::SgdHyper& hyper) {
  CAPTURE(hyper.momentum);
  CAPTURE(hyper.dampening);
  CAPTURE(hyper.nesterov);
  Parameters<T> param(1), buffer;
  const Tensor lr = tensor<float>({0.125}, {});
  for (std::int64_t step = 1; step <= 4; ++step) {
    Parameters<T> grad(static_cast<unsigned>(10 * step));
    const std::vector<Tensor> buffers = hyper.momentum == 0 ? std::vector<Tensor>{} : buffer.tensors;
    cpu().sgd_step({param.tensors, grad.tensors, {}, kDecay, lr, scalar_step(step - 1), {}}, buffers, hyper);
    param.for_each([&](std::size_t i, std::size_t j) {
      double &p = param.expected[i][j], &b = buffer.expected[i][j];
      const double g = grad.expected[i][j] + kDecay[i] * p;
      b = step == 1 ? g : hyper.momentum * b + (1 - hyper.dampening) * g;
      p -= 0.125 * (hyper.momentum == 0 ? g : hyper.nesterov ? g + hyper.momentum * b : b);
    });
    param.check();
  }
}

template <class T> void check_adamw() {
  const Kernels::AdamWHyper hyper{0.9, 0.99, 1e-8};
  Parameters<T> param(1), first, second;
  const Tensor lr = tensor<float>({0.125}, {});
  for (std::int64_t step = 1; step <= 5; ++step) {
    Parameters<T> grad(static_cast<unsigned>(10 * step));
    cpu().adamw_step({param.tensors, grad.tensors, {}, kDecay, lr, scalar_step(step - 1), {}}, first.tensors,
                     second.tensors, hyper);
    const double t = static_cast<double>(step);
    param.for_each([&](std::size_t i, std::size_t j) {
      double &p = param.expected[i][j], &m = first.expected[i][j], &v = second.expected[i][j];
      const double g = grad.expected[i][j];
      p *= 1 - 0.125 * kDecay[i];
      m = hyper.beta1 * m + (1 - hyper.beta1) * g;
      v = hyper.beta2 * v + (1 - hyper.beta2) * g * g;
      const double m_hat = m / (1 - std::pow(hyper.beta1, t)), v_hat = v / (1 - std::pow(hyper.beta2, t));
      p -= 0.125 * m_hat / (std::sqrt(v_hat) + hyper.eps);
    });
    param.check();
    first.check();
    second.check();
  }
}

double norm_of(const std::vector<Tensor>& tensors) {
  const Tensor norm = unwritten<float>({});
  cpu().global_norm(tensors, norm);
  return static_cast<double>(*norm.data<float>());
}

Values clipped(const Values& v, double norm, double max_norm) {
  const std::vector<Tensor> tensors{tensor<float>(v, {static_cast<std::int64_t>(v.size())})};
  cpu().clip_by_norm(tensors, tensor<float>({norm}, {}), max_norm);
  return values<float>(tensors[0]);
}

}  // namespace

TEST_CASE("sgd_step equals its formula over several steps, with and without momentum, dampening and Nesterov") {
  for (const Kernels::SgdHyper& hyper : {Kernels::SgdHyper{0, 0, false}, Kernels::SgdHyper{0.9, 0, false},
                                         Kernels::SgdHyper{0.9, 0.5, false}, Kernels::SgdHyper{0.8, 0, true}}) {
    check_sgd<float>(hyper);
    check_sgd<double>(hyper);
  }
}

TEST_CASE("the first sgd_step does not read the momentum buffer") {
  const std::vector<Tensor> param{tensor<float>({1}, {1})}, grad{tensor<float>({2}, {1})},
      buffer{tensor<float>({std::numeric_limits<double>::quiet_NaN()}, {1})};
  cpu().sgd_step({param, grad, {}, kNoDecay, tensor<float>({0.5}, {}), scalar_step(0), {}}, buffer, {0.9, 0, false});
  CHECK(values<float>(param[0]) == Values{0});
  CHECK(values<float>(buffer[0]) == Values{2});
}

TEST_CASE("adamw_step equals its formula over several steps") {
  check_adamw<float>();
  check_adamw<double>();
}

TEST_CASE("optimizer steps are the same for any number of threads") {
  for (const int threads : {1, 2, 3}) {
    const Threads scope(threads);
    check_sgd<float>({0.9, 0, true});
    check_adamw<float>();
  }
}

TEST_CASE("steps count their updates, beyond 32 bits") {
  const Tensor counter = tensor<std::int64_t>({4294967295.0}, {});
  const std::vector<Tensor> param{tensor<float>({1}, {1})}, grad{tensor<float>({1}, {1})},
      first{tensor<float>({0}, {1})}, second{tensor<float>({0}, {1})};
  const Kernels::Update update{param, grad, {}, kNoDecay, tensor<float>({0.5}, {}), counter, {}};
  cpu().sgd_step(update, {}, {0, 0, false});
  cpu().adamw_step(update, first, second, {0.9, 0.99, 1e-8});
  CHECK(*counter.data<std::int64_t>() == 4294967297);
}

TEST_CASE("global_norm is over all tensors, of both dtypes, and squares that overflow f32 do not matter") {
  CHECK(norm_of({tensor<float>({3}, {1}), tensor<double>({4}, {1, 1})}) == 5);
  CHECK(norm_of({tensor<float>({3e30, 4e30}, {2})}) == doctest::Approx(5e30).epsilon(1e-6));
  CHECK(norm_of({tensor<float>(Values(1'000'000, 0.1), {1'000'000})}) == doctest::Approx(100).epsilon(1e-6));
  CHECK(norm_of({}) == 0);
}

TEST_CASE("clip_by_norm scales to the largest norm allowed and leaves smaller ones alone") {
  CHECK(error_of(clipped({3, 4}, 5, 1), {3 / (5 + 1e-6), 4 / (5 + 1e-6)}) < 1e-6);
  CHECK(clipped({3, 4}, 5, 10) == Values{3, 4});
  CHECK(clipped({0, 0}, 0, 1) == Values{0, 0});
  CHECK(std::isnan(clipped({3, 4}, std::numeric_limits<double>::quiet_NaN(), 1)[0]));
}

TEST_CASE("steps multiply gradients by the factor, read 16-bit ones and rewrite the copies") {
  const Tensor factor = tensor<float>({0.25}, {}), lr = tensor<float>({0.5}, {});
  const std::vector<Tensor> param{tensor<float>({1, 2}, {2}), tensor<float>({3}, {1})};
  const std::vector<Tensor> grad{tensor<Half>({4, -8}, {2}), tensor<BFloat16>({16}, {1})};
  const std::vector<Tensor> copies{unwritten<BFloat16>({2}), Tensor()};
  cpu().sgd_step({param, grad, copies, std::vector<double>{0, 1}, lr, scalar_step(0), factor}, {}, {0, 0, false});
  CHECK(values<float>(param[0]) == Values{0.5, 3});
  CHECK(values<float>(param[1]) == Values{3 - 0.5 * (4 + 3)});
  CHECK(values<BFloat16>(copies[0]) == Values{0.5, 3});
  CHECK(values<Half>(grad[0]) == Values{4, -8});

  // m = 0.1 g and v = 0.01 g^2 are corrected to g and g^2: the first step goes lr against the sign.
  const std::vector<Tensor> first{tensor<float>({0, 0}, {2}), tensor<float>({0}, {1})},
      second{tensor<float>({0, 0}, {2}), tensor<float>({0}, {1})};
  cpu().adamw_step({param, grad, copies, std::vector<double>{0, 0}, lr, scalar_step(0), factor}, first, second,
                   {0.9, 0.99, 0});
  CHECK(error_of(values<float>(first[0]), {0.1, -0.2}) < 1e-6);
  CHECK(error_of(values<float>(second[0]), {0.01, 0.04}) < 1e-6);
  CHECK(error_of(values<float>(param[0]), {0, 3.5}) < 1e-6);
  CHECK(error_of(values<BFloat16>(copies[0]), {0, 3.5}) < 1e-6);
}

TEST_CASE("a step whose factor is not finite changes nothing and does not count") {
  for (const double value : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    const Tensor factor = tensor<float>({value}, {}), lr = tensor<float>({0.5}, {});
    const std::vector<Tensor> param{tensor<float>({1, 2}, {2})}, grad{tensor<float>({4, -8}, {2})},
        first{tensor<float>({5, 6}, {2})}, second{tensor<float>({7, 8}, {2})}, copies{tensor<Half>({9, 10}, {2})};
    const Kernels::Update update{param, grad, copies, std::vector<double>{1}, lr, scalar_step(4), factor};
    cpu().sgd_step(update, first, {0.9, 0, false});
    cpu().adamw_step(update, first, second, {0.9, 0.99, 1e-8});
    CHECK(values<float>(param[0]) == Values{1, 2});
    CHECK(values<float>(first[0]) == Values{5, 6});
    CHECK(values<float>(second[0]) == Values{7, 8});
    CHECK(values<Half>(copies[0]) == Values{9, 10});
    CHECK(*update.step.data<std::int64_t>() == 4);
  }
}

TEST_CASE("norms and clipping take 16-bit gradients") {
  const std::vector<Tensor> grads{tensor<Half>({3}, {1}), tensor<BFloat16>({4, 0}, {2})};
  CHECK(norm_of(grads) == 5);
  cpu().clip_by_norm(grads, tensor<float>({5}, {}), 2.5);
  CHECK(error_of(values<Half>(grads[0]), {1.5}) < 1e-3);
  CHECK(error_of(values<BFloat16>(grads[1]), {2, 0}) < 1e-2);
}

namespace {

/// Loss scaling fed with one norm after the other.
struct Scaling {
  Kernels::LossScaleRule rule;
  Tensor scale, counts = tensor<std::int64_t>({0, 0}, {2}), norm = unwritten<float>({}), factor = unwritten<float>({});

  void step(double scaled_norm, double max_norm = 0) {
    const std::vector<Tensor> gradients{tensor<float>({scaled_norm}, {1})};
    cpu().gradient_factor(gradients, norm, scale, counts, max_norm, rule, factor);
  }
  double value() const { return values<float>(scale)[0]; }
};

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("the scale of losses grows and shrinks as torch.amp.GradScaler's") {
  // From PyTorch 2.15: GradScaler(init_scale=1024, growth_factor=2, backoff_factor=0.5, growth_interval=3), with an
  // infinite gradient at the steps marked; get_scale() after each update().
  const bool skipped[] = {false, false, false, false, true, false, false, true, true, false, false, false, false};
  const double expected[] = {1024, 1024, 2048, 2048, 1024, 1024, 1024, 512, 256, 256, 256, 512, 512};
  Scaling s{.rule = {.interval = 3}, .scale = tensor<float>({1024}, {})};
  for (std::size_t i = 0; i < std::size(expected); ++i) {
    CAPTURE(i);
    s.step(skipped[i] ? kInfinity : 1);
    CHECK(s.value() == expected[i]);
    CHECK(std::isnan(values<float>(s.factor)[0]) == skipped[i]);
  }
  CHECK(values<std::int64_t>(s.counts) == Values{1, 0});
}

TEST_CASE("the scale stays within its bounds, and skipped steps in a row are counted") {
  Scaling s{.rule = {.interval = 1, .least = 4, .most = 12}, .scale = tensor<float>({8}, {})};
  s.step(1);
  CHECK(s.value() == 12);
  s.step(1);
  CHECK(s.value() == 12);
  for (int i = 0; i < 3; ++i) s.step(std::numeric_limits<double>::quiet_NaN());
  CHECK(s.value() == 4);
  CHECK(values<std::int64_t>(s.counts) == Values{0, 3});
  s.step(1);
  CHECK(values<std::int64_t>(s.counts) == Values{0, 0});
}

TEST_CASE("the factor of the gradients takes the scale out and clips the true norm") {
  Scaling s{.rule = {}, .scale = tensor<float>({16}, {})};
  s.step(80);
  CHECK(values<float>(s.norm) == Values{5});
  CHECK(values<float>(s.factor) == Values{1.0 / 16});
  s.step(80, 10);
  CHECK(values<float>(s.factor) == Values{1.0 / 16});
  s.step(80, 2);
  CHECK(error_of(values<float>(s.factor), {2 / (5 + 1e-6) / 16}) < 1e-6);

  Scaling unscaled;
  unscaled.counts = {};
  unscaled.step(5, 1);
  CHECK(error_of(values<float>(unscaled.factor), {1 / (5 + 1e-6)}) < 1e-6);
  unscaled.step(kInfinity, 1);
  CHECK(std::isnan(values<float>(unscaled.factor)[0]));
}
