#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "cuttle/cuttle.hpp"
#include "kernels.hpp"

using namespace cuttle;

namespace {

/// Restores the number of threads at the end of a test.
struct ThreadScope {
  ~ThreadScope() { set_num_threads(0); }
};

struct Case {
  std::int64_t n, c, h, w, k, r, s;
  Conv2dOptions o = {};
  std::string str() const {
    return fmt::format("x[{},{},{},{}] k{} {}x{} stride {},{} padding {},{} dilation {},{} groups {}", n, c, h, w, k, r,
                       s, o.stride.h, o.stride.w, o.padding.h, o.padding.w, o.dilation.h, o.dilation.w, o.groups);
  }
  Shape x_shape() const { return {n, c, h, w}; }
  Shape w_shape() const { return {k, c / o.groups, r, s}; }
  Shape y_shape() const {
    return {n, k, (h + 2 * o.padding.h - o.dilation.h * (r - 1) - 1) / o.stride.h + 1,
            (w + 2 * o.padding.w - o.dilation.w * (s - 1) - 1) / o.stride.w + 1};
  }
};

const Case kCases[] = {
    {1, 1, 1, 1, 1, 1, 1},
    {5, 3, 7, 6, 4, 1, 1},
    {5, 17, 5, 5, 209, 1, 1},
    {2, 64, 9, 9, 32, 1, 1, {.stride = 2}},
    {64, 3, 32, 32, 16, 1, 1, {.stride = 2}},
    {1, 2, 9, 9, 3, 1, 1, {.stride = 3, .padding = 1}},
    {1, 1, 28, 28, 32, 3, 3, {.padding = 1}},
    {5, 3, 10, 11, 33, 3, 3, {.padding = 1}},
    {5, 17, 7, 6, 5, 3, 3},
    {1, 32, 14, 14, 64, 3, 3, {.padding = 1}},
    {1, 40, 8, 8, 70, 3, 3, {.stride = 2, .padding = 1}},
    {1, 209, 2, 2, 209, 3, 3, {.stride = 2, .padding = 1}},
    {1, 3, 23, 21, 7, 7, 7, {.stride = 2, .padding = 3}},
    {2, 3, 12, 12, 5, 5, 5, {.padding = 2}},
    {2, 5, 12, 9, 6, 3, 3, {.padding = 2, .dilation = 2}},
    {1, 4, 13, 13, 6, 3, 3, {.stride = {2, 3}, .padding = {2, 1}, .dilation = {3, 2}}},
    {2, 5, 11, 7, 3, 5, 2, {.stride = {1, 2}, .padding = {0, 1}}},
    {2, 3, 1, 9, 4, 1, 3, {.padding = {0, 1}}},
    {2, 3, 9, 1, 4, 3, 1, {.stride = {2, 1}, .padding = {1, 0}}},
    {1, 2, 5, 5, 3, 2, 2, {.stride = 4, .padding = 1}},
    {1, 2, 3, 3, 2, 3, 3, {.padding = 3}},
    {2, 6, 6, 6, 8, 3, 3, {.padding = 1, .groups = 2}},
    {2, 6, 7, 6, 9, 3, 3, {.stride = 2, .padding = 1, .groups = 3}},
    {1, 8, 5, 5, 2, 3, 3, {.dilation = 2, .groups = 2}},
    {2, 17, 7, 6, 17, 3, 3, {.padding = 1, .groups = 17}},
    {1, 96, 8, 8, 96, 3, 3, {.stride = 2, .padding = 1, .groups = 96}},
    {2, 5, 7, 6, 10, 3, 3, {.padding = 1, .groups = 5}},
    {1, 3, 9, 8, 9, 5, 3, {.stride = {3, 2}, .padding = {2, 1}, .dilation = {1, 2}, .groups = 3}},
};

/// Fixed pseudo-random values in [-1, 1).
std::vector<double> noise(std::int64_t n, std::uint32_t seed) {
  std::vector<double> values(static_cast<std::size_t>(n));
  std::uint32_t state = seed * 2654435761u + 12345u;
  for (double& value : values) {
    state = state * 1664525u + 1013904223u;
    value = static_cast<float>(state >> 8) / static_cast<float>(1 << 23) - 1;
  }
  return values;
}

std::size_t at(const Shape& shape, std::int64_t a, std::int64_t b, std::int64_t c, std::int64_t d) {
  return static_cast<std::size_t>(((a * shape[1] + b) * shape[2] + c) * shape[3] + d);
}

/// The definition, in float64: visit(x index, w index, y index) for every product of the convolution.
template <class Visit> void for_each_product(const Case& t, Visit visit) {
  const Shape xs = t.x_shape(), ws = t.w_shape(), ys = t.y_shape();
  const std::int64_t filters = t.k / t.o.groups;
  for (std::int64_t n = 0; n < t.n; ++n)
    for (std::int64_t k = 0; k < t.k; ++k)
      for (std::int64_t p = 0; p < ys[2]; ++p)
        for (std::int64_t q = 0; q < ys[3]; ++q)
          for (std::int64_t c = 0; c < ws[1]; ++c)
            for (std::int64_t r = 0; r < t.r; ++r)
              for (std::int64_t s = 0; s < t.s; ++s) {
                const std::int64_t h = p * t.o.stride.h - t.o.padding.h + r * t.o.dilation.h;
                const std::int64_t w = q * t.o.stride.w - t.o.padding.w + s * t.o.dilation.w;
                if (h < 0 || h >= t.h || w < 0 || w >= t.w) continue;
                visit(at(xs, n, k / filters * ws[1] + c, h, w), at(ws, k, c, r, s), at(ys, n, k, p, q));
              }
}

struct Reference {
  std::vector<double> x, w, bias, dy, y, dx, dw, db;
};

Reference reference(const Case& t) {
  Reference ref{noise(t.x_shape().numel(), 1),
                noise(t.w_shape().numel(), 2),
                noise(t.k, 3),
                noise(t.y_shape().numel(), 4),
                {},
                {},
                {},
                {}};
  const Shape ys = t.y_shape();
  ref.db.assign(ref.bias.size(), 0);
  for (std::size_t i = 0; i < ref.dy.size(); ++i) {
    const std::size_t k = i / static_cast<std::size_t>(ys[2] * ys[3]) % static_cast<std::size_t>(t.k);
    ref.y.push_back(ref.bias[k]);
    ref.db[k] += ref.dy[i];
  }
  ref.dx.assign(ref.x.size(), 0);
  ref.dw.assign(ref.w.size(), 0);
  for_each_product(t, [&](std::size_t x, std::size_t w, std::size_t y) {
    ref.y[y] += ref.x[x] * ref.w[w];
    ref.dx[x] += ref.dy[y] * ref.w[w];
    ref.dw[w] += ref.dy[y] * ref.x[x];
  });
  return ref;
}

/// |a - b| / |b| in the 2-norm.
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

/// A tensor with values in logical order, written element by element: these tests must not lean on other kernels.
template <class T> Tensor make(const std::vector<double>& values, const Shape& shape, Layout layout) {
  Tensor t = Tensor::empty(shape, {.dtype = dtype_of<T>, .layout = layout});
  T* data = t.mutable_data<T>();
  if (shape.rank() != 4 || layout == Layout::nchw) {
    for (std::size_t i = 0; i < values.size(); ++i) data[i] = static_cast<T>(values[i]);
    return t;
  }
  const Shape stored{shape[0], shape[2], shape[3], shape[1]};
  for (std::int64_t n = 0; n < shape[0]; ++n)
    for (std::int64_t c = 0; c < shape[1]; ++c)
      for (std::int64_t h = 0; h < shape[2]; ++h)
        for (std::int64_t w = 0; w < shape[3]; ++w)
          data[at(stored, n, h, w, c)] = static_cast<T>(values[at(shape, n, c, h, w)]);
  return t;
}

template <class T> std::vector<double> read(const Tensor& t) {
  std::vector<double> values(static_cast<std::size_t>(t.numel()));
  const T* data = t.data<T>();
  const Shape shape = t.shape();
  if (shape.rank() != 4 || t.layout() == Layout::nchw) {
    std::copy(data, data + values.size(), values.begin());
    return values;
  }
  const Shape stored{shape[0], shape[2], shape[3], shape[1]};
  for (std::int64_t n = 0; n < shape[0]; ++n)
    for (std::int64_t c = 0; c < shape[1]; ++c)
      for (std::int64_t h = 0; h < shape[2]; ++h)
        for (std::int64_t w = 0; w < shape[3]; ++w) values[at(shape, n, c, h, w)] = data[at(stored, n, h, w, c)];
  return values;
}

/// Outputs start as NaN, so that an element that is not written or is read too early shows.
template <class T> Tensor poisoned(const Shape& shape, Layout layout) {
  const std::vector<double> nans(static_cast<std::size_t>(shape.numel()), std::numeric_limits<double>::quiet_NaN());
  return make<T>(nans, shape, layout);
}

struct Results {
  std::vector<double> y, dx, dw, db;
  bool operator==(const Results&) const = default;
};

template <class T> Results run(const Case& t, const Reference& ref, Layout layout) {
  const Tensor x = make<T>(ref.x, t.x_shape(), layout), w = make<T>(ref.w, t.w_shape(), layout);
  const Tensor bias = make<T>(ref.bias, {t.k}, layout), dy = make<T>(ref.dy, t.y_shape(), layout);
  const Tensor y = poisoned<T>(t.y_shape(), layout), dx = poisoned<T>(t.x_shape(), layout);
  const Tensor dw = poisoned<T>(t.w_shape(), layout), db = poisoned<T>({t.k}, layout);
  const Kernels& k = kernels(x);
  k.conv2d(x, w, bias, t.o, false, y);
  k.conv2d_backward_data(dy, w, t.o, dx);
  k.conv2d_backward_filter(dy, x, t.o, dw, false);
  k.bias_backward(dy, db, false);
  return {read<T>(y), read<T>(dx), read<T>(dw), read<T>(db)};
}

template <class T> void compare(double tolerance) {
  const ThreadScope threads;
  for (const Case& t : kCases) {
    const Reference ref = reference(t);
    for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
      for (const int count : {1, 2, 3, 5}) {
        set_num_threads(count);
        const std::string name = fmt::format("{} {} {} threads", t.str(), name_of(layout), count);
        CAPTURE(name);
        const Results results = run<T>(t, ref, layout);
        CHECK(distance(results.y, ref.y) < tolerance);
        CHECK(distance(results.dx, ref.dx) < tolerance);
        CHECK(distance(results.dw, ref.dw) < tolerance);
        CHECK(distance(results.db, ref.db) < tolerance);
      }
    }
  }
}

}  // namespace

TEST_CASE("f32 convolutions and their gradients equal the float64 definition over odd shapes") { compare<float>(1e-5); }

TEST_CASE("f64 convolutions and their gradients equal the float64 definition over odd shapes") {
  compare<double>(1e-13);
}

TEST_CASE("Convolution results are the same bits whatever the number of threads") {
  const ThreadScope threads;
  for (const Case& t : kCases) {
    CAPTURE(t.str());
    const Reference ref = reference(t);
    set_num_threads(1);
    const Results one = run<float>(t, ref, Layout::nhwc);
    for (const int count : {2, 2, 3, 5}) {
      set_num_threads(count);
      CHECK(run<float>(t, ref, Layout::nhwc) == one);
    }
  }
}

TEST_CASE("Filter and bias gradients are added where accumulate is set") {
  for (const Case& t : kCases) {
    CAPTURE(t.str());
    const Reference ref = reference(t);
    for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
      const Tensor x = make<float>(ref.x, t.x_shape(), layout), dy = make<float>(ref.dy, t.y_shape(), layout);
      const std::vector<double> old_dw = noise(t.w_shape().numel(), 5), old_db = noise(t.k, 6);
      const Tensor dw = make<float>(old_dw, t.w_shape(), layout), db = make<float>(old_db, {t.k}, layout);
      kernels(x).conv2d_backward_filter(dy, x, t.o, dw, true);
      kernels(x).bias_backward(dy, db, true);
      std::vector<double> expected_dw = ref.dw, expected_db = ref.db;
      for (std::size_t i = 0; i < old_dw.size(); ++i) expected_dw[i] += old_dw[i];
      for (std::size_t i = 0; i < old_db.size(); ++i) expected_db[i] += old_db[i];
      CHECK(distance(read<float>(dw), expected_dw) < 1e-5);
      CHECK(distance(read<float>(db), expected_db) < 1e-5);
    }
  }
}

TEST_CASE("A convolution without bias adds none") {
  const Case t{2, 3, 6, 5, 18, 3, 3, {.padding = 1}};
  const Reference ref = reference(t);
  const Tensor x = make<float>(ref.x, t.x_shape(), Layout::nhwc), w = make<float>(ref.w, t.w_shape(), Layout::nhwc);
  const Tensor y = poisoned<float>(t.y_shape(), Layout::nhwc);
  kernels(x).conv2d(x, w, {}, t.o, false, y);
  std::vector<double> expected = ref.y;
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] -= ref.bias[i / 30 % 18];
  CHECK(distance(read<float>(y), expected) < 1e-5);
}

TEST_CASE("Input pixels that a strided convolution skips get a gradient of exactly zero") {
  const Case t{64, 3, 32, 32, 16, 1, 1, {.stride = 2}};
  const std::vector<double> dx = run<float>(t, reference(t), Layout::nhwc).dx;
  for (std::size_t i = 0; i < dx.size(); ++i) {
    const std::size_t h = i / 32 % 32, w = i % 32;
    if (h % 2 == 1 || w % 2 == 1) REQUIRE(dx[i] == 0.0);
  }
}

TEST_CASE("A 3x3 convolution takes a small part of its input as scratch") {
  const ThreadScope threads;
  set_num_threads(2);
  const Case t{16, 64, 56, 56, 64, 3, 3, {.padding = 1}};
  const Shape shape = t.x_shape();
  const Tensor x = Tensor::empty(shape), y = Tensor::empty(shape), w = Tensor::empty(t.w_shape());
  std::fill_n(static_cast<float*>(x.raw_mutable_data()), x.numel(), 1.0f);
  std::fill_n(static_cast<float*>(y.raw_mutable_data()), y.numel(), 1.0f);
  std::fill_n(static_cast<float*>(w.raw_mutable_data()), w.numel(), 1.0f);
  memory::CachingAllocator& allocator = memory::allocator(kCpu);
  const auto scratch_of = [&](auto&& call) {
    allocator.reset_peak_stats();
    const std::uint64_t before = allocator.stats().allocated_bytes;
    call();
    return allocator.stats().peak_allocated_bytes - before;
  };
  CHECK(x.nbytes() == 12845056);
  CHECK(scratch_of([&] { kernels(x).conv2d(x, w, {}, t.o, false, y); }) < x.nbytes() / 8);
  CHECK(scratch_of([&] { kernels(x).conv2d_backward_data(y, w, t.o, x); }) < x.nbytes() / 8);
  CHECK(scratch_of([&] { kernels(x).conv2d_backward_filter(y, x, t.o, w, false); }) < x.nbytes() / 2);
}

namespace {

template <class T> void compare_linear(double tolerance) {
  const ThreadScope threads;
  struct Sizes {
    std::int64_t m, i, o;
  };
  for (const Sizes& sizes :
       {Sizes{1, 1, 1}, {1, 300, 10}, {5, 17, 209}, {128, 3136, 128}, {130, 128, 10}, {7, 600, 33}}) {
    const std::int64_t m = sizes.m, i = sizes.i, o = sizes.o;  // CAPTURE is a lambda; clang 14 lets none see bindings
    const auto size = [](std::int64_t a, std::int64_t b) { return static_cast<std::size_t>(a * b); };
    const std::vector<double> x = noise(m * i, 1), w = noise(o * i, 2), bias = noise(o, 3), dy = noise(m * o, 4);
    std::vector<double> y(size(m, o)), dx(size(m, i)), dw(size(o, i)), db(size(o, 1));
    for (std::int64_t a = 0; a < m; ++a)
      for (std::int64_t b = 0; b < o; ++b) {
        y[size(a, o) + size(b, 1)] = bias[size(b, 1)];
        db[size(b, 1)] += dy[size(a, o) + size(b, 1)];
        for (std::int64_t k = 0; k < i; ++k) {
          y[size(a, o) + size(b, 1)] += x[size(a, i) + size(k, 1)] * w[size(b, i) + size(k, 1)];
          dx[size(a, i) + size(k, 1)] += dy[size(a, o) + size(b, 1)] * w[size(b, i) + size(k, 1)];
          dw[size(b, i) + size(k, 1)] += dy[size(a, o) + size(b, 1)] * x[size(a, i) + size(k, 1)];
        }
      }
    std::vector<double> twice_dw = dw;
    for (double& value : twice_dw) value *= 2;
    for (const int count : {1, 2, 3, 5}) {
      set_num_threads(count);
      CAPTURE(fmt::format("x[{},{}] w[{},{}] {} threads", m, i, o, i, count));
      const Layout layout = Layout::nhwc;
      const Tensor tx = make<T>(x, {m, i}, layout), tw = make<T>(w, {o, i}, layout), tb = make<T>(bias, {o}, layout);
      const Tensor tdy = make<T>(dy, {m, o}, layout), ty = poisoned<T>({m, o}, layout);
      const Tensor tdx = poisoned<T>({m, i}, layout), tdw = poisoned<T>({o, i}, layout), tdb = poisoned<T>({o}, layout);
      const Kernels& k = kernels(tx);
      k.linear(tx, tw, tb, false, ty);
      k.linear_backward_data(tdy, tw, tdx);
      k.linear_backward_weight(tdy, tx, tdw, false);
      k.bias_backward(tdy, tdb, false);
      CHECK(distance(read<T>(ty), y) < tolerance);
      CHECK(distance(read<T>(tdx), dx) < tolerance);
      CHECK(distance(read<T>(tdw), dw) < tolerance);
      CHECK(distance(read<T>(tdb), db) < tolerance);
      k.linear_backward_weight(tdy, tx, tdw, true);
      CHECK(distance(read<T>(tdw), twice_dw) < tolerance);
    }
  }
}

}  // namespace

TEST_CASE("Linear layers and their gradients equal the float64 definition") {
  compare_linear<float>(1e-5);
  compare_linear<double>(1e-13);
}

TEST_CASE("Convolution and linear kernels refuse half precision by naming the op and the tensor") {
  const Tensor x = Tensor::empty({1, 2, 4, 4}, {.dtype = DType::f16}),
               w = Tensor::empty({3, 2, 1, 1}, {.dtype = DType::f16});
  const Tensor y = Tensor::empty({1, 3, 4, 4}, {.dtype = DType::f16});
  try {
    kernels(x).conv2d(x, w, {}, {}, false, y);
    FAIL("f16 was accepted");
  } catch (const DtypeError& error) {
    CHECK(error.cause() == "conv2d: the CPU computes in f32 and f64, and got f16[1,2,4,4] NHWC cpu");
    CHECK(error.hint().find("f32") != std::string::npos);
  }
  const Tensor m = Tensor::empty({4, 4}, {.dtype = DType::bf16});
  CHECK_THROWS_AS(kernels(m).linear(m, m, {}, false, m), DtypeError);
  CHECK_THROWS_AS(kernels(m).linear_backward_data(m, m, m), DtypeError);
  CHECK_THROWS_AS(kernels(m).linear_backward_weight(m, m, m, false), DtypeError);
  CHECK_THROWS_AS(kernels(x).conv2d_backward_data(y, w, {}, x), DtypeError);
  CHECK_THROWS_AS(kernels(x).conv2d_backward_filter(y, x, {}, w, false), DtypeError);
  CHECK_THROWS_AS(kernels(x).bias_backward(y, m, false), DtypeError);
}
