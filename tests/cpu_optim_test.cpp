#include <limits>
#include <vector>

#include "support/cpu_kernel_util.hpp"

using namespace cuttle;
using namespace cuttle::test;

namespace {

constexpr std::int64_t kSizes[] = {1, 37, 40'009};
const std::vector<double> kDecay{0, 0.01, 0.1};

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
    cpu().sgd_step(param.tensors, grad.tensors, buffers, kDecay, hyper, lr,
                   tensor<std::int64_t>({static_cast<double>(step)}, {}));
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
    cpu().adamw_step(param.tensors, grad.tensors, first.tensors, second.tensors, kDecay, hyper, lr,
                     tensor<std::int64_t>({static_cast<double>(step)}, {}));
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
  cpu().sgd_step(param, grad, buffer, std::vector<double>{0}, {0.9, 0, false}, tensor<float>({0.5}, {}),
                 tensor<std::int64_t>({1}, {}));
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

TEST_CASE("increment counts beyond 32 bits") {
  const Tensor counter = tensor<std::int64_t>({4294967295.0}, {});
  cpu().increment(counter);
  cpu().increment(counter);
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
