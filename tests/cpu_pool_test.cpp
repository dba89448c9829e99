#include <algorithm>
#include <limits>
#include <vector>

#include "support/cpu_kernel_util.hpp"

using namespace cuttle;
using namespace cuttle::test;

namespace {

struct Case {
  Shape x;
  Pool2dOptions options;
};

// Odd sizes, windows that overlap, leave gaps, hang over each edge, and have more channels than a chunk of the kernel.
const Case kCases[] = {
    {{2, 3, 8, 6}, {.kernel = 2, .stride = 2}},
    {{2, 70, 7, 9}, {.kernel = 2, .stride = 2}},
    {{2, 5, 7, 9}, {.kernel = 2, .stride = 2, .ceil_mode = true}},
    {{1, 16, 7, 7}, {.kernel = 2, .stride = 1}},
    {{3, 130, 9, 5}, {.kernel = 3, .stride = 2, .padding = 1}},
    {{2, 4, 11, 6}, {.kernel = {3, 2}, .stride = {2, 3}, .padding = {1, 0}}},
    {{1, 6, 10, 10}, {.kernel = 3, .stride = 3, .padding = 1, .ceil_mode = true}},
    {{2, 3, 6, 8}, {.kernel = 2, .stride = 3}},
    {{1, 1, 5, 5}, {.kernel = 5, .stride = 1, .padding = 2}},
    {{1, 2, 6, 6}, {.kernel = 4, .stride = 4, .padding = 2, .ceil_mode = true}},
    {{1, 2, 5, 4}, {.kernel = 1, .stride = 1}},
    {{1, 2, 17, 17}, {.kernel = 17, .stride = 17}},
};
// Max pooling only.
const Case kDilatedCases[] = {
    {{2, 3, 9, 9}, {.kernel = 2, .stride = 2, .dilation = 2}},
    {{1, 9, 11, 8}, {.kernel = 3, .stride = {1, 2}, .padding = 1, .dilation = {2, 3}}},
    {{1, 2, 2, 2}, {.kernel = 2, .stride = 1, .padding = 1, .dilation = 3}},
};

/// PyTorch's pooling_output_shape.
std::int64_t output_size(std::int64_t input, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
                         std::int64_t dilation, bool ceil_mode) {
  const std::int64_t room = input + 2 * padding - dilation * (kernel - 1) - 1;
  std::int64_t size = (room + (ceil_mode ? stride - 1 : 0)) / stride + 1;
  if (ceil_mode && (size - 1) * stride >= input + padding) --size;
  return size;
}

Shape output_shape(const Case& c) {
  const Pool2dOptions& o = c.options;
  return {c.x[0], c.x[1], output_size(c.x[2], o.kernel.h, o.stride.h, o.padding.h, o.dilation.h, o.ceil_mode),
          output_size(c.x[3], o.kernel.w, o.stride.w, o.padding.w, o.dilation.w, o.ceil_mode)};
}

std::size_t at(const Shape& shape, std::int64_t plane, std::int64_t h, std::int64_t w) {
  return static_cast<std::size_t>((plane * shape[2] + h) * shape[3] + w);
}

/// Calls visit(output element, plane, p, q) in logical order.
template <class Visit> void for_outputs(const Shape& y, Visit visit) {
  std::size_t i = 0;
  for (std::int64_t plane = 0; plane < y[0] * y[1]; ++plane)
    for (std::int64_t p = 0; p < y[2]; ++p)
      for (std::int64_t q = 0; q < y[3]; ++q) visit(i++, plane, p, q);
}

struct MaxReference {
  Values y, argmax, dx;
};

MaxReference max_reference(const Case& c, const Values& x, const Values& dy) {
  const Pool2dOptions& o = c.options;
  MaxReference result{Values(dy.size()), Values(dy.size()), Values(x.size())};
  for_outputs(output_shape(c), [&](std::size_t i, std::int64_t plane, std::int64_t p, std::int64_t q) {
    double best = -std::numeric_limits<double>::infinity();
    std::int64_t winner = -1, place = 0;
    for (std::int64_t r = 0; r < o.kernel.h; ++r) {
      for (std::int64_t s = 0; s < o.kernel.w; ++s) {
        const std::int64_t h = p * o.stride.h - o.padding.h + r * o.dilation.h;
        const std::int64_t w = q * o.stride.w - o.padding.w + s * o.dilation.w;
        if (h < 0 || h >= c.x[2] || w < 0 || w >= c.x[3]) continue;
        const std::size_t from = at(c.x, plane, h, w);
        if (x[from] > best || std::isnan(x[from])) {
          best = x[from];
          winner = static_cast<std::int64_t>(from);
          place = r * o.kernel.w + s;
        }
      }
    }
    result.y[i] = best;
    result.argmax[i] = static_cast<double>(place);
    if (winner >= 0) result.dx[static_cast<std::size_t>(winner)] += dy[i];
  });
  return result;
}

template <class T, class Index> void check_max(const Case& c, Layout layout) {
  CAPTURE(c.x.str());
  CAPTURE(c.options.kernel.h);
  CAPTURE(name_of(layout));
  const Shape out = output_shape(c);
  // Rounded, so that windows have equals, of which the first must win.
  Values x = random_values(c.x.numel(), 1, 0, 2);
  for (double& value : x) value = std::round(value);
  const Values dy = random_values(out.numel(), 2);
  const MaxReference expected = max_reference(c, x, dy);
  const Tensor y = unwritten<T>(out, layout), argmax = unwritten<Index>(out, layout), dx = unwritten<T>(c.x, layout);
  cpu().max_pool2d(tensor<T>(x, c.x, layout), c.options, y, argmax);
  cpu().max_pool2d_backward(tensor<T>(dy, out, layout), argmax, c.options, dx);
  CHECK(values<T>(y) == expected.y);
  CHECK(values<Index>(argmax) == expected.argmax);
  const Tensor alone = unwritten<T>(out, layout);
  cpu().max_pool2d(tensor<T>(x, c.x, layout), c.options, alone, {});
  CHECK(values<T>(alone) == expected.y);
  CHECK(error_of(values<T>(dx), expected.dx) < tolerance<T>());
}

void check_max(const Case& c) {
  for (const Layout layout : kLayouts) {
    if (c.options.kernel.h * c.options.kernel.w <= 256) {
      check_max<float, std::uint8_t>(c, layout);
      check_max<double, std::uint8_t>(c, layout);
    }
    check_max<float, std::int32_t>(c, layout);
  }
}

/// One window of an average: the inputs [h0,h1) x [w0,w1) over `divisor`.
struct Region {
  std::int64_t h0, h1, w0, w1;
  double divisor;
};

/// As PyTorch's avg_pool2d: the end is cut at the padded input for the divisor, then all is cut at the input.
Region average_region(const Case& c, std::int64_t p, std::int64_t q) {
  const Pool2dOptions& o = c.options;
  std::int64_t h0 = p * o.stride.h - o.padding.h, w0 = q * o.stride.w - o.padding.w;
  std::int64_t h1 = std::min(h0 + o.kernel.h, c.x[2] + o.padding.h),
               w1 = std::min(w0 + o.kernel.w, c.x[3] + o.padding.w);
  const std::int64_t padded = (h1 - h0) * (w1 - w0);
  h0 = std::max<std::int64_t>(h0, 0);
  w0 = std::max<std::int64_t>(w0, 0);
  h1 = std::min(h1, c.x[2]);
  w1 = std::min(w1, c.x[3]);
  return {h0, h1, w0, w1, static_cast<double>(o.count_include_pad ? padded : (h1 - h0) * (w1 - w0))};
}

struct AverageReference {
  Values y, dx;
};

template <class RegionOf>
AverageReference average_reference(const Shape& in, const Shape& out, const Values& x, const Values& dy,
                                   RegionOf region_of) {
  AverageReference result{Values(dy.size()), Values(x.size())};
  for_outputs(out, [&](std::size_t i, std::int64_t plane, std::int64_t p, std::int64_t q) {
    const Region region = region_of(p, q);
    for (std::int64_t h = region.h0; h < region.h1; ++h) {
      for (std::int64_t w = region.w0; w < region.w1; ++w) {
        result.y[i] += x[at(in, plane, h, w)] / region.divisor;
        result.dx[at(in, plane, h, w)] += dy[i] / region.divisor;
      }
    }
  });
  return result;
}

template <class T, class RegionOf, class Forward, class Backward>
void check_average(const Shape& in, const Shape& out, RegionOf region_of, Forward forward, Backward backward) {
  const Values x = random_values(in.numel(), 3), dy = random_values(out.numel(), 4);
  const AverageReference expected = average_reference(in, out, x, dy, region_of);
  for (const Layout layout : kLayouts) {
    CAPTURE(in.str());
    CAPTURE(out.str());
    CAPTURE(name_of(layout));
    const Tensor y = unwritten<T>(out, layout), dx = unwritten<T>(in, layout);
    forward(tensor<T>(x, in, layout), y);
    backward(tensor<T>(dy, out, layout), dx);
    CHECK(error_of(values<T>(y), expected.y) < tolerance<T>());
    CHECK(error_of(values<T>(dx), expected.dx) < tolerance<T>());
  }
}

template <class T> void check_avg_pool(const Case& c) {
  check_average<T>(
      c.x, output_shape(c), [&](std::int64_t p, std::int64_t q) { return average_region(c, p, q); },
      [&](const Tensor& x, const Tensor& y) { cpu().avg_pool2d(x, c.options, y); },
      [&](const Tensor& dy, const Tensor& dx) { cpu().avg_pool2d_backward(dy, c.options, dx); });
}

template <class T> void check_adaptive(const Shape& in, const Shape& out) {
  const auto region_of = [&](std::int64_t p, std::int64_t q) {
    const auto edge = [](std::int64_t numerator, std::int64_t divisor, bool up) {
      const double exact = static_cast<double>(numerator) / static_cast<double>(divisor);
      return static_cast<std::int64_t>(up ? std::ceil(exact) : std::floor(exact));
    };
    Region r{edge(p * in[2], out[2], false), edge((p + 1) * in[2], out[2], true), edge(q * in[3], out[3], false),
             edge((q + 1) * in[3], out[3], true), 0};
    r.divisor = static_cast<double>((r.h1 - r.h0) * (r.w1 - r.w0));
    return r;
  };
  check_average<T>(
      in, out, region_of, [](const Tensor& x, const Tensor& y) { cpu().adaptive_avg_pool2d(x, y); },
      [](const Tensor& dy, const Tensor& dx) { cpu().adaptive_avg_pool2d_backward(dy, dx); });
}

}  // namespace

TEST_CASE("max_pool2d, its winners and its gradient equal a direct search, in both layouts") {
  for (const Case& c : kCases) check_max(c);
  for (const Case& c : kDilatedCases) check_max(c);
}

TEST_CASE("max_pool2d is the same for any number of threads") {
  const Case large{{2, 18, 32, 32}, {.kernel = 2, .stride = 1}};
  REQUIRE(output_shape(large).numel() > 2 * 16384);  // a piece (kElementGrain) for each of three threads
  for (const int threads : {1, 2, 3}) {
    const Threads scope(threads);
    for (const Layout layout : kLayouts) check_max<float, std::uint8_t>(large, layout);
  }
}

TEST_CASE("max_pool2d lets NaN win and sends its gradient there") {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const Values x{1, kNan, 2, 5, 3, 4, 9, 8};
  for (const Size2 kernel : {Size2(2, 2), Size2(2, 4)}) {
    const Shape out{1, 1, 1, 4 / kernel.w};
    const Tensor y = unwritten<float>(out), argmax = unwritten<std::uint8_t>(out), dx = unwritten<float>({1, 1, 2, 4});
    const Pool2dOptions options{.kernel = kernel, .stride = kernel};
    cpu().max_pool2d(tensor<float>(x, {1, 1, 2, 4}), options, y, argmax);
    cpu().max_pool2d_backward(tensor<float>({1, 1}, out), argmax, options, dx);
    CHECK(std::isnan(y.data<float>()[0]));
    CHECK(argmax.data<std::uint8_t>()[0] == 1);
    CHECK(values<float>(dx)[1] == 1);
  }
}

TEST_CASE("max_pool2d of a window of minus infinities sends its gradient to the first pixel inside") {
  const Pool2dOptions options{.kernel = 3, .stride = 3, .padding = 1};
  const Tensor y = unwritten<float>({1, 1, 1, 1}), argmax = unwritten<std::uint8_t>({1, 1, 1, 1}),
               dx = unwritten<float>({1, 1, 2, 2});
  cpu().max_pool2d(tensor<float>(Values(4, -std::numeric_limits<double>::infinity()), {1, 1, 2, 2}), options, y,
                   argmax);
  cpu().max_pool2d_backward(tensor<float>({6}, {1, 1, 1, 1}), argmax, options, dx);
  CHECK(values<std::uint8_t>(argmax) == Values{4});
  CHECK(values<float>(dx) == Values{6, 0, 0, 0});
}

TEST_CASE("avg_pool2d and its gradient divide as PyTorch does, with and without padding counted") {
  for (Case c : kCases) {
    for (const bool include : {true, false}) {
      c.options.count_include_pad = include;
      check_avg_pool<float>(c);
      check_avg_pool<double>(c);
    }
  }
}

TEST_CASE("avg_pool2d in ceil mode divides by what lies in the padded input") {
  // Windows start at -1 and 2; the second covers 2, 3 and one place of padding, but not the place beyond that.
  const Case c{{1, 1, 1, 4}, {.kernel = {1, 4}, .stride = {1, 3}, .padding = {0, 1}, .ceil_mode = true}};
  REQUIRE(output_shape(c) == Shape{1, 1, 1, 2});
  const Tensor y = unwritten<float>({1, 1, 1, 2});
  cpu().avg_pool2d(tensor<float>({3, 6, 9, 15}, c.x), c.options, y);
  CHECK(values<float>(y) == Values{18.0 / 4, 8});
}

TEST_CASE("adaptive_avg_pool2d and its gradient equal the direct average over uneven windows") {
  for (const Size2 out : {Size2(1), Size2(3, 2), Size2(7, 9), Size2(10, 12)}) {
    check_adaptive<float>({2, 66, 7, 9}, {2, 66, out.h, out.w});
    check_adaptive<double>({3, 5, 7, 9}, {3, 5, out.h, out.w});
  }
}

TEST_CASE("a large average keeps its precision") {
  const Shape in{1, 2, 300, 300};
  const Tensor y = unwritten<float>({1, 2, 1, 1});
  cpu().adaptive_avg_pool2d(tensor<float>(Values(static_cast<std::size_t>(in.numel()), 0.1), in), y);
  CHECK(values<float>(y) == Values(2, static_cast<double>(0.1f)));
}
