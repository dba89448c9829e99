#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cuda/conv_cases.hpp"
#include "cuda/gpu.hpp"
#include "cuttle/conv.hpp"
#include "cuttle/cuttle.hpp"
#include "support/close.hpp"

using namespace cuttle;
using namespace cuttle::testing;

namespace {

using Settings = ConvSettingsScope;

/// The same convolution with algorithms asked for by name.
ConvCase with(ConvCase t, const ConvAlgorithms& wanted) {
  t.o.choice = std::make_shared<ConvChoice>(wanted);
  return t;
}

/// A shape is measured when it comes for the second time.
int times(ConvPolicy policy) { return policy == ConvPolicy::measure ? 2 : 1; }

constexpr DType kDTypes[] = {DType::f32, DType::f16, DType::bf16};
constexpr Layout kLayouts[] = {Layout::nhwc, Layout::nchw};

double tolerance(DType dtype) { return dtype == DType::f32 ? 1e-5 : dtype == DType::f16 ? 2e-3 : 2e-2; }

/// Values in [-1,1) that `dtype` holds exactly, as f64 on the CPU.
Tensor input(const Shape& shape, std::uint64_t seed, DType dtype) {
  return formula_tensor(shape, {.seed = seed}).to(dtype).to(DType::f64);
}

Tensor on_gpu(const Tensor& f64, DType dtype, Layout layout) { return f64.to(layout).to(dtype).to(gpu()); }
Tensor from_gpu_f64(const Tensor& t) { return t.to(kCpu).to(DType::f64); }
double error(const Tensor& gpu_result, const Tensor& expected) {
  return relative_error(from_gpu_f64(gpu_result), expected);
}

/// Elements that are not written, or are read too early, show as NaN.
Tensor poisoned(const Shape& shape, DType dtype, Layout layout) {
  return on_gpu(Tensor::full(shape, std::numeric_limits<double>::quiet_NaN(), {.dtype = DType::f64}), dtype, layout);
}

/// A convolution in f64 on the CPU, whose kernels are tested against the definition.
struct Reference {
  Tensor x, w, bias, dy, y, dx, dw, db;
  Reference(const ConvCase& t, DType dtype)
      : x(input(t.x_shape(), 1, dtype)),
        w(input(t.w_shape(), 2, dtype)),
        bias(input({t.k}, 3, dtype)),
        dy(input(t.y_shape(), 4, dtype)),
        y(Tensor::empty(t.y_shape(), x.options())),
        dx(Tensor::empty(t.x_shape(), x.options())),
        dw(Tensor::empty(t.w_shape(), x.options())),
        db(Tensor::empty({t.k}, x.options())) {
    const Kernels& k = kernels(x);
    k.conv2d(x, w, bias, t.o, false, y);
    k.conv2d_backward_data(dy, w, t.o, dx);
    k.conv2d_backward_filter(dy, x, t.o, dw, false);
    k.bias_backward(dy, db, false);
  }
};

void compare(const ConvCase& t, const Reference& ref, DType dtype, Layout layout) {
  const Tensor x = on_gpu(ref.x, dtype, layout), w = on_gpu(ref.w, dtype, layout);
  const Tensor bias = on_gpu(ref.bias, dtype, layout), dy = on_gpu(ref.dy, dtype, layout);
  const Tensor y = poisoned(t.y_shape(), dtype, layout), dx = poisoned(t.x_shape(), dtype, layout);
  const Tensor dw = poisoned(t.w_shape(), dtype, layout), db = poisoned({t.k}, dtype, layout);
  const Kernels& k = kernels(x);
  k.conv2d(x, w, bias, t.o, false, y);
  k.conv2d_backward_data(dy, w, t.o, dx);
  k.conv2d_backward_filter(dy, x, t.o, dw, false);
  k.bias_backward(dy, db, false);
  CHECK(error(y, ref.y) < tolerance(dtype));
  CHECK(error(dx, ref.dx) < tolerance(dtype));
  CHECK(error(dw, ref.dw) < tolerance(dtype));
  CHECK(error(db, ref.db) < tolerance(dtype));
}

void compare_all(std::span<const ConvCase> cases, std::span<const DType> dtypes, std::span<const Layout> layouts) {
  for (const ConvCase& t : cases) {
    for (const DType dtype : dtypes) {
      const Reference ref(t, dtype);
      for (const Layout layout : layouts) {
        CAPTURE(fmt::format("{} {} {}", t.str(), name_of(dtype), name_of(layout)));
        compare(t, ref, dtype, layout);
      }
    }
  }
}

/// What a call throws, as text.
template <class E, class Call> std::string error_text(Call&& call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing was thrown";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

const ConvCase kPlain{4, 32, 14, 14, 64, 3, 3, {.padding = 1}};

}  // namespace

TEST_CASE("cuda: convolutions and their gradients equal the CPU's in f64") {
  const Settings settings({.policy = ConvPolicy::heuristic});
  compare_all(kConvCases, kDTypes, kLayouts);
  compare_all(kDepthwiseCases, kDTypes, kLayouts);
}

TEST_CASE("cuda: convolutions without cuDNN equal the CPU's in f64") {
  const Settings settings({.policy = ConvPolicy::gemm});
  compare_all(kConvCases, kDTypes, kLayouts);
  compare_all(std::span(kDepthwiseCases).first(4), kDTypes, kLayouts);
}

TEST_CASE("cuda: convolutions without cuDNN that get little workspace equal the CPU's in f64") {
  // A few rows of patches at a time, so that tiles and bands have edges.
  const Settings settings({.policy = ConvPolicy::gemm, .workspace_limit = 64 * 1024});
  for (const ConvCase& t : {kPlain, ConvCase{3, 16, 19, 18, 24, 3, 3, {.stride = 2, .padding = 1}},
                            ConvCase{2, 8, 21, 20, 16, 3, 3, {.padding = 3, .dilation = 3, .groups = 2}}}) {
    for (const DType dtype : kDTypes) {
      CAPTURE(fmt::format("{} {}", t.str(), name_of(dtype)));
      compare(t, Reference(t, dtype), dtype, Layout::nhwc);
    }
  }
}

TEST_CASE("cuda: measured convolutions equal the CPU's in f64") {
  const Settings settings({.policy = ConvPolicy::measure});
  constexpr DType kHalf[] = {DType::f16}, kSingle[] = {DType::f32};
  for (int i = 0; i < times(ConvPolicy::measure); ++i) {
    compare_all(kConvCases, kHalf, std::span(kLayouts).first(1));
    compare_all(std::span(kConvCases).first(10), kSingle, std::span(kLayouts).last(1));
    compare_all(std::span(kDepthwiseCases).first(4), kHalf, std::span(kLayouts).first(1));
  }
}

TEST_CASE("cuda: the legacy API's choice equals the CPU's in f64, or says why there is none") {
  const Settings settings({.policy = ConvPolicy::legacy});
  int compared = 0;
  for (const ConvCase& t : kConvCases) {
    for (const DType dtype : kDTypes) {
      const Reference ref(t, dtype);
      for (const Layout layout : kLayouts) {
        CAPTURE(fmt::format("{} {} {}", t.str(), name_of(dtype), name_of(layout)));
        const std::string text = error_text<CudnnError>([&] { compare(t, ref, dtype, layout); });
        if (text == "nothing was thrown")
          ++compared;
        else
          CHECK(contains(text, "tried:\n"));
      }
    }
  }
  CHECK(compared >= 46);  // of 138: f32 at least
}

TEST_CASE("cuda: algorithms chosen by name equal the CPU's in f64, and are told to be in use") {
  const Reference ref(kPlain, DType::f32);
  for (const ConvAlgorithms& wanted :
       {ConvAlgorithms{"IMPLICIT_GEMM", "ALGO_1", "ALGO_1"},
        ConvAlgorithms{"IMPLICIT_PRECOMP_GEMM", "ALGO_0", "ALGO_0"}, ConvAlgorithms{"gemm", "gemm", "gemm"}}) {
    CAPTURE(wanted.forward);
    const ConvCase t = with(kPlain, wanted);
    compare(t, ref, DType::f32, Layout::nchw);
    CHECK(t.o.choice->used() == wanted);
  }
  // Not every card has these.
  for (const char* name : {"WINOGRAD_NONFUSED", "FFT_TILING", "FFT"}) {
    CAPTURE(name);
    const ConvCase t = with(kPlain, {name, name, name});
    const std::string text = error_text<CudnnError>([&] { compare(t, ref, DType::f32, Layout::nchw); });
    if (text != "nothing was thrown") CHECK(contains(text, fmt::format("legacy {}: ", name)));
  }
}

TEST_CASE("cuda: an engine that a heuristic chose can be named, with its knobs and without") {
  for (const DType dtype : {DType::f16, DType::f32}) {
    const Reference ref(kPlain, dtype);
    const ConvCase free = with(kPlain, {});
    compare(free, ref, dtype, Layout::nhwc);
    ConvAlgorithms chosen = free.o.choice->used();
    for (const ConvPass pass : kConvPasses) {
      CAPTURE(chosen.of(pass));
      REQUIRE(contains(chosen.of(pass), "engine:"));
    }
    const ConvCase named = with(kPlain, chosen);
    compare(named, ref, dtype, Layout::nhwc);
    CHECK(named.o.choice->used() == chosen);

    for (const ConvPass pass : kConvPasses) chosen.of(pass).resize(chosen.of(pass).find(','));
    const ConvCase bare = with(kPlain, chosen);
    compare(bare, ref, dtype, Layout::nhwc);
    for (const ConvPass pass : kConvPasses) CHECK(bare.o.choice->used().of(pass).starts_with(chosen.of(pass)));
  }
}

TEST_CASE("cuda: a named algorithm that cannot run is an error with the reason, or the next name is taken") {
  const auto run = [](const ConvCase& t) {
    const Tensor x = Tensor::zeros(t.x_shape(), {.device = gpu(), .layout = Layout::nchw});
    const Tensor w = Tensor::zeros(t.w_shape(), x.options()), y = Tensor::empty(t.y_shape(), x.options());
    kernels(x).conv2d(x, w, {}, t.o, false, y);
  };
  const auto why = [&](const char* name) {
    return error_text<CudnnError>([&] { run(with(kPlain, {.forward = name})); });
  };
  CHECK(contains(why("im2col"), "conv2d forward f32 NCHW x[4,32,14,14]"));
  CHECK(contains(why("im2col"), "im2col: it is an algorithm of the CPU"));
  CHECK(contains(why("depthwise"), "depthwise: this kernel of Cuttle's own does not take the convolution"));
  CHECK(contains(why("engine:100000"), "there is no engine 100000: they are numbered 0 to "));
  CHECK(contains(why("engine:0,k9999=1"), "engine 0 has no knob k9999"));
  CHECK(contains(why("DIRECT"), "legacy DIRECT: "));
  const ConvCase t = with(kPlain, {.forward = "DIRECT|im2col|gemm"});
  run(t);
  CHECK(t.o.choice->used().forward == "gemm");
  const ConvCase u = with(kPlain, {.forward = "DIRECT|auto"});
  run(u);
  CHECK_FALSE(u.o.choice->used().forward.empty());
  {
    const Settings settings({.cudnn = false});
    CHECK(contains(why("IMPLICIT_GEMM"), "IMPLICIT_GEMM: cuDNN is switched off"));
    run(kPlain);
  }
  const Settings settings({.workspace_limit = 0});
  const std::string text = why("WINOGRAD_NONFUSED");
  CHECK(contains(text, "legacy WINOGRAD_NONFUSED: it wants "));
  CHECK(contains(text, " bytes of workspace, the limit is 0"));
}

TEST_CASE("cuda: no workspace at all is enough for common convolutions") {
  for (const ConvPolicy path : {ConvPolicy::heuristic, ConvPolicy::measure}) {
    const Settings settings({.policy = path, .workspace_limit = 0});
    for (const ConvCase& t : {kPlain, ConvCase{4, 64, 14, 14, 128, 1, 1}}) {
      CAPTURE(t.str());
      for (int i = 0; i < times(path); ++i) compare(t, Reference(t, DType::f16), DType::f16, Layout::nhwc);
    }
  }
}

TEST_CASE("cuda: an algorithm whose workspace memory cannot be had is named with the bytes that it wanted") {
  const ConvCase t{16, 64, 56, 56, 64, 3, 3, {.padding = 1}};
  const Tensor x = Tensor::zeros(t.x_shape(), {.device = gpu(), .layout = Layout::nchw});
  const Tensor w = Tensor::zeros(t.w_shape(), x.options()), y = Tensor::empty(t.y_shape(), x.options());
  const Conv2dOptions o = with(t, {.forward = "WINOGRAD_NONFUSED"}).o;
  memory::CachingAllocator& allocator = memory::allocator(gpu());
  allocator.empty_cache();
  allocator.set_limit(allocator.stats().reserved_bytes);
  std::vector<Tensor> held;  // what lies free beside blocks in use
  for (std::size_t bytes = std::size_t{64} << 20; bytes > std::size_t{1} << 20;) {
    try {
      held.push_back(bytes_on(gpu(), bytes));
    } catch (const OutOfMemoryError&) {
      bytes /= 2;
    }
  }
  const std::string text = error_text<OutOfMemoryError>([&] { kernels(x).conv2d(x, w, {}, o, false, y); });
  allocator.set_limit(std::nullopt);
  held.clear();
  CHECK(contains(text, "legacy WINOGRAD_NONFUSED: "));
  CHECK(contains(text, " bytes of workspace could not be had"));
  kernels(x).conv2d(x, w, {}, o, false, y);
}

TEST_CASE("cuda: filter and bias gradients are added where accumulate is set") {
  for (const ConvPolicy path : {ConvPolicy::heuristic, ConvPolicy::measure, ConvPolicy::legacy, ConvPolicy::gemm}) {
    const Settings settings({.policy = path});
    const ConvCase depthwise{2, 32, 20, 19, 32, 3, 3, {.stride = 2, .padding = 1, .groups = 32}};
    for (const ConvCase& t : {kPlain, depthwise, ConvCase{5, 3, 10, 11, 33, 3, 3, {.padding = 1}}}) {
      for (const DType dtype : {DType::f32, DType::f16}) {
        for (const Layout layout : kLayouts) {
          // The legacy API has not all of these; what it has is compared above.
          if (path == ConvPolicy::legacy && (t.o.groups > 1 || dtype != DType::f32 || layout != Layout::nchw)) continue;
          CAPTURE(fmt::format("path {} {} {} {}", static_cast<int>(path), t.str(), name_of(dtype), name_of(layout)));
          const Reference ref(t, dtype);
          const Tensor old_dw = input(t.w_shape(), 5, dtype), old_db = input({t.k}, 6, dtype);
          const Tensor x = on_gpu(ref.x, dtype, layout), dy = on_gpu(ref.dy, dtype, layout);
          for (int i = 0; i < times(path); ++i) {
            const Tensor dw = on_gpu(old_dw, dtype, layout), db = on_gpu(old_db, dtype, layout);
            kernels(x).conv2d_backward_filter(dy, x, t.o, dw, true);
            kernels(x).bias_backward(dy, db, true);
            CHECK(error(dw, add(ref.dw, old_dw)) < tolerance(dtype));
            CHECK(error(db, add(ref.db, old_db)) < tolerance(dtype));
          }
        }
      }
    }
  }
}

TEST_CASE("cuda: a ReLU behind a convolution, with and without a bias, equals the CPU's in f64") {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const ConvCase depthwise{2, 32, 20, 19, 32, 3, 3, {.stride = 2, .padding = 1, .groups = 32}};
  for (const ConvPolicy path : {ConvPolicy::heuristic, ConvPolicy::measure, ConvPolicy::legacy, ConvPolicy::gemm}) {
    const Settings settings({.policy = path});
    for (const ConvCase& t : {kPlain, depthwise, ConvCase{4, 1, 28, 28, 32, 3, 3, {.padding = 1}},
                              ConvCase{5, 3, 10, 11, 33, 3, 3, {.padding = 1}}, ConvCase{4, 64, 14, 14, 128, 1, 1}}) {
      for (const DType dtype : {DType::f32, DType::f16}) {
        for (const Layout layout : kLayouts) {
          // The legacy API has not all of these.
          if (path == ConvPolicy::legacy && (t.o.groups > 1 || dtype != DType::f32 || layout != Layout::nchw)) continue;
          const Tensor x = input(t.x_shape(), 1, dtype), w = input(t.w_shape(), 2, dtype);
          for (const Tensor& bias : {input({t.k}, 3, dtype), Tensor{}}) {
            CAPTURE(fmt::format("path {} {} {} {}{}", static_cast<int>(path), t.str(), name_of(dtype), name_of(layout),
                                bias.defined() ? " bias" : ""));
            const Tensor expected = Tensor::empty(t.y_shape(), x.options());
            kernels(x).conv2d(x, w, bias, t.o, false, expected);
            kernels(x).relu(expected, kInfinity, expected);
            const Tensor there = on_gpu(x, dtype, layout), y = poisoned(t.y_shape(), dtype, layout);
            for (int i = 0; i < times(path); ++i) {
              kernels(there).conv2d(there, on_gpu(w, dtype, layout),
                                    bias.defined() ? on_gpu(bias, dtype, layout) : Tensor{}, t.o, true, y);
            }
            CHECK(error(y, expected) < tolerance(dtype));
            int negative = 0;
            for (const double value : from_gpu_f64(y).to_vector<double>()) negative += value < 0;
            CHECK(negative == 0);
          }
        }
      }
    }
  }
}

TEST_CASE("cuda: a NaN goes through the ReLU behind a convolution") {
  for (const DType dtype : {DType::f32, DType::f16}) {
    for (const Layout layout : kLayouts) {
      CAPTURE(fmt::format("{} {}", name_of(dtype), name_of(layout)));
      const Tensor x = on_gpu(input(kPlain.x_shape(), 1, dtype), dtype, layout);
      const Tensor w = on_gpu(input(kPlain.w_shape(), 2, dtype), dtype, layout);
      const Tensor bias = poisoned({kPlain.k}, dtype, layout);
      const Tensor y = Tensor::zeros(kPlain.y_shape(), x.options());
      kernels(x).conv2d(x, w, bias, kPlain.o, true, y);
      int numbers = 0;
      for (const double value : from_gpu_f64(y).to_vector<double>()) numbers += !std::isnan(value);
      CHECK(numbers == 0);
    }
  }
}

TEST_CASE("cuda: filter gradients of few input channels equal the CPU's in f64, also where they are added") {
  for (const ConvPolicy path : {ConvPolicy::heuristic, ConvPolicy::measure}) {
    const Settings settings({.policy = path});
    for (const ConvCase& t : kFirstLayerCases) {
      for (const DType dtype : kDTypes) {
        if (path == ConvPolicy::measure && dtype != DType::f16) continue;
        CAPTURE(fmt::format("path {} {} {}", static_cast<int>(path), t.str(), name_of(dtype)));
        const Tensor x = input(t.x_shape(), 1, dtype), dy = input(t.y_shape(), 4, dtype);
        const Tensor old = input(t.w_shape(), 5, dtype), expected = Tensor::empty(t.w_shape(), x.options());
        kernels(x).conv2d_backward_filter(dy, x, t.o, expected, false);
        const Tensor there = on_gpu(x, dtype, Layout::nhwc), dy_there = on_gpu(dy, dtype, Layout::nhwc);
        const Tensor dw = poisoned(t.w_shape(), dtype, Layout::nhwc), sum = on_gpu(old, dtype, Layout::nhwc);
        for (int i = 0; i < times(path); ++i) kernels(there).conv2d_backward_filter(dy_there, there, t.o, dw, false);
        CHECK(error(dw, expected) < tolerance(dtype));
        if (path == ConvPolicy::measure) continue;
        kernels(there).conv2d_backward_filter(dy_there, there, t.o, sum, true);
        CHECK(error(sum, add(expected, old)) < tolerance(dtype));
      }
    }
  }
}

TEST_CASE("cuda: filter gradients of few input channels take slices of a batch that start anywhere") {
  for (const std::int64_t k : {6, 7, 40}) {
    const ConvCase whole{3, 3, 5, 5, k, 3, 3, {.padding = 1}};
    ConvCase part = whole;
    part.n = 2;
    for (const DType dtype : kDTypes) {
      CAPTURE(fmt::format("{} {}", whole.str(), name_of(dtype)));
      const Settings settings({.policy = ConvPolicy::heuristic});
      const Reference ref(part, dtype);
      const Tensor x = Tensor::empty(whole.x_shape(), {.dtype = dtype, .device = gpu()}).slice(1, 3);
      const Tensor dy = Tensor::empty(whole.y_shape(), x.options()).slice(1, 3);
      const Tensor dw = poisoned(whole.w_shape(), dtype, Layout::nhwc);
      kernels(x).convert(on_gpu(ref.x, dtype, Layout::nhwc), x);
      kernels(x).convert(on_gpu(ref.dy, dtype, Layout::nhwc), dy);
      kernels(x).conv2d_backward_filter(dy, x, part.o, dw, false);
      CHECK(error(dw, ref.dw) < tolerance(dtype));
    }
  }
}

TEST_CASE("cuda: a search for the fastest algorithm leaves an accumulated gradient alone") {
  const Settings settings({.policy = ConvPolicy::measure, .deterministic = true});
  const ConvCase t{3, 24, 13, 15, 40, 3, 3, {.padding = 1}};  // a shape that no other test has in the cache
  const Reference ref(t, DType::f16);
  const Tensor x = on_gpu(ref.x, DType::f16, Layout::nhwc), dy = on_gpu(ref.dy, DType::f16, Layout::nhwc);
  const auto accumulate = [&] {
    const Tensor dw = on_gpu(input(t.w_shape(), 5, DType::f16), DType::f16, Layout::nhwc);
    kernels(x).conv2d_backward_filter(dy, x, t.o, dw, true);
    return dw.to(kCpu).to_vector<double>();
  };
  accumulate();  // by the heuristic
  const std::vector<double> searched = accumulate(), cached = accumulate();
  CHECK(searched == cached);
}

TEST_CASE("cuda: deterministic convolutions repeat their bits, also after others were cached for the shape") {
  const ConvCase t{32, 16, 28, 28, 16, 3, 3, {.padding = 1}};
  const Reference ref(t, DType::f32);
  const Tensor x = on_gpu(ref.x, DType::f32, Layout::nchw), w = on_gpu(ref.w, DType::f32, Layout::nchw);
  const Tensor dy = on_gpu(ref.dy, DType::f32, Layout::nchw);
  const auto run = [&](const ConvCase& c) {
    const Tensor dx = Tensor::empty(t.x_shape(), x.options()), dw = Tensor::empty(t.w_shape(), x.options());
    kernels(x).conv2d_backward_data(dy, w, c.o, dx);
    kernels(x).conv2d_backward_filter(dy, x, c.o, dw, false);
    std::vector<double> values = dx.to(kCpu).to_vector<double>();
    for (const double value : dw.to(kCpu).to_vector<double>()) values.push_back(value);
    return values;
  };
  {
    // ALGO_0 adds with atomics.
    const ConvCase atomic = with(t, {.backward_data = "ALGO_0", .backward_filter = "ALGO_0"});
    run(atomic);
    const Settings settings({.deterministic = true});
    CHECK(contains(error_text<CudnnError>([&] { run(atomic); }), "legacy ALGO_0: it is not deterministic"));
  }
  for (const ConvPolicy path : {ConvPolicy::heuristic, ConvPolicy::measure, ConvPolicy::legacy, ConvPolicy::gemm}) {
    CAPTURE(static_cast<int>(path));
    const Settings settings({.policy = path, .deterministic = true});
    if (path == ConvPolicy::measure) run(t);
    const std::vector<double> once = run(t);
    for (int i = 0; i < 5; ++i) CHECK(run(t) == once);
  }
}

TEST_CASE("cuda: slices of a batch that start anywhere are convolved") {
  const ConvCase t{3, 3, 5, 5, 7, 3, 3, {.padding = 1}};
  const ConvCase depthwise{3, 5, 5, 5, 5, 3, 3, {.padding = 1, .groups = 5}};
  for (const ConvCase& whole : {t, depthwise}) {
    ConvCase part = whole;
    part.n = 2;
    for (const DType dtype : kDTypes) {
      for (const ConvPolicy path : {ConvPolicy::heuristic, ConvPolicy::gemm}) {
        CAPTURE(fmt::format("{} {} path {}", whole.str(), name_of(dtype), static_cast<int>(path)));
        const Settings settings({.policy = path});
        const Reference ref(part, dtype);
        const Tensor x = Tensor::empty(whole.x_shape(), {.dtype = dtype, .device = gpu()}).slice(1, 3);
        const Tensor y = Tensor::empty(whole.y_shape(), x.options()).slice(1, 3);
        const Tensor dx = Tensor::empty(whole.x_shape(), x.options()).slice(1, 3);
        kernels(x).convert(on_gpu(ref.x, dtype, Layout::nhwc), x);
        kernels(x).conv2d(x, on_gpu(ref.w, dtype, Layout::nhwc), on_gpu(ref.bias, dtype, Layout::nhwc), part.o, false,
                          y);
        CHECK(error(y, ref.y) < tolerance(dtype));
        kernels(x).convert(on_gpu(ref.dy, dtype, Layout::nhwc), y);
        kernels(x).conv2d_backward_data(y, on_gpu(ref.w, dtype, Layout::nhwc), part.o, dx);
        CHECK(error(dx, ref.dx) < tolerance(dtype));
      }
    }
  }
}

TEST_CASE("cuda: input pixels that a strided convolution skips get a gradient of exactly zero") {
  const ConvCase t{64, 3, 32, 32, 16, 1, 1, {.stride = 2}};
  const Reference ref(t, DType::f16);
  for (const ConvPolicy path : {ConvPolicy::heuristic, ConvPolicy::gemm}) {
    const Settings settings({.policy = path});
    const Tensor dx = poisoned(t.x_shape(), DType::f16, Layout::nhwc);
    const Tensor dy = on_gpu(ref.dy, DType::f16, Layout::nhwc);
    kernels(dx).conv2d_backward_data(dy, on_gpu(ref.w, DType::f16, Layout::nhwc), t.o, dx);
    const std::vector<double> values = dx.to(kCpu).to_vector<double>();
    int wrong = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool skipped = i / 32 % 32 % 2 == 1 || i % 32 % 2 == 1;
      if (skipped && values[i] != 0) ++wrong;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("cuda: an empty batch is convolved to an empty batch with gradients of zero") {
  Tensor x = Tensor::empty({0, 3, 3, 3}, {.device = gpu()}).requires_grad_();
  Tensor w = Tensor::ones({3, 3, 3, 3}, {.device = gpu()}).requires_grad_();
  const Tensor y = conv2d(x, w);
  CHECK(y.shape() == Shape{0, 3, 1, 1});
  y.backward(Tensor::empty(y.shape(), y.options()));
  CHECK(w.grad().to_vector<double>() == std::vector<double>(81, 0.0));
}

TEST_CASE("cuda: a kernel larger than the padded input is refused with the arithmetic") {
  const Tensor x = Tensor::zeros({1, 1, 4, 4}, {.device = gpu()}), w = Tensor::zeros({1, 1, 3, 3}, {.device = gpu()});
  CHECK_THROWS_AS(conv2d(x, w, {}, {.dilation = 2}), ShapeError);
}

TEST_CASE("cuda: linear layers and their gradients equal the CPU's in f64") {
  struct Sizes {
    std::int64_t m, i, o;
  };
  for (const auto [m, i, o] :
       {Sizes{1, 1, 1}, {1, 300, 10}, {5, 17, 209}, {128, 3136, 128}, {130, 128, 10}, {7, 600, 33}, {64, 2048, 1000}}) {
    for (const DType dtype : kDTypes) {
      CAPTURE(fmt::format("x[{},{}] w[{},{}] {}", m, i, o, i, name_of(dtype)));
      const Tensor x = input({m, i}, 1, dtype), w = input({o, i}, 2, dtype), bias = input({o}, 3, dtype);
      const Tensor dy = input({m, o}, 4, dtype);
      const Tensor y = Tensor::empty({m, o}, x.options()), plain = Tensor::empty({m, o}, x.options());
      const Tensor dx = Tensor::empty({m, i}, x.options()), dw = Tensor::empty({o, i}, x.options());
      const Kernels& cpu = kernels(x);
      cpu.linear(x, w, bias, false, y);
      cpu.linear(x, w, {}, false, plain);
      cpu.linear_backward_data(dy, w, dx);
      cpu.linear_backward_weight(dy, x, dw, false);
      const auto there = [&](const Tensor& t) { return on_gpu(t, dtype, Layout::nhwc); };
      const auto nan = [&](const Tensor& t) { return poisoned(t.shape(), dtype, Layout::nhwc); };
      const Tensor gx = there(x), gw = there(w), gdy = there(dy);
      const Tensor gy = nan(y), gplain = nan(y), gdx = nan(dx), gdw = nan(dw);
      const Kernels& k = kernels(gx);
      k.linear(gx, gw, there(bias), false, gy);
      k.linear(gx, gw, {}, false, gplain);
      k.linear_backward_data(gdy, gw, gdx);
      k.linear_backward_weight(gdy, gx, gdw, false);
      CHECK(error(gy, y) < tolerance(dtype));
      CHECK(error(gplain, plain) < tolerance(dtype));
      CHECK(error(gdx, dx) < tolerance(dtype));
      CHECK(error(gdw, dw) < tolerance(dtype));
      k.linear_backward_weight(gdy, gx, gdw, true);
      CHECK(error(gdw, mul(dw, 2)) < tolerance(dtype));
    }
  }
}

TEST_CASE("cuda: bias gradients of tall, narrow and odd tensors equal the CPU's in f64") {
  for (const Shape& shape :
       {Shape{100000, 8}, {3, 1000}, {1, 1}, {77, 13}, {2, 3, 50, 40}, {9, 64, 7, 7}, {1, 1, 300, 301}}) {
    for (const DType dtype : kDTypes) {
      for (const Layout layout : kLayouts) {
        CAPTURE(fmt::format("{} {} {}", shape.str(), name_of(dtype), name_of(layout)));
        const Tensor dy = input(shape, 1, dtype), db = Tensor::empty({shape[1]}, dy.options());
        kernels(dy).bias_backward(dy, db, false);
        const Tensor there = on_gpu(dy, dtype, layout), result = poisoned({shape[1]}, dtype, layout);
        kernels(there).bias_backward(there, result, false);
        CHECK(error(result, db) < tolerance(dtype));
      }
    }
  }
}
