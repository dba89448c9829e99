#include <algorithm>

#include "cuda/conv/runner.hpp"
#include "cuda/kernels/bias.hpp"
#include "cuda/kernels/dispatch.cuh"
#include "cuda/kernels/gemm.hpp"
#include "kernels.hpp"

namespace cuttle::cuda {

namespace {

constexpr std::int64_t kPatchBytes = std::int64_t{64} << 20;  ///< patches held at once: their products fill any card
constexpr std::int64_t kMaxRows = std::int64_t{1} << 24;      ///< of one product: sizes of cuBLAS are 32-bit

/// Sizes as the kernels use them. A patch is a row of G groups of R*S*Cg values: the input under one output pixel.
struct Sizes {
  std::int64_t n, c, h, w, k, p, q, r, s, groups;
  std::int64_t stride_h, stride_w, padding_h, padding_w, dilation_h, dilation_w;
  __host__ __device__ std::int64_t group_channels() const { return c / groups; }
  __host__ __device__ std::int64_t group_patch() const { return r * s * group_channels(); }
  __host__ __device__ std::int64_t patch() const { return r * s * c; }
  std::int64_t group_filters() const { return k / groups; }
  /// Whether a patch is just a pixel, so that the input itself is the matrix of patches.
  bool is_pixel() const { return r * s == 1 && stride_h * stride_w == 1 && padding_h + padding_w == 0; }
};

Sizes sizes_of(const ConvKey& key) {
  return {key.x[0],       key.x[1],       key.x[2],        key.x[3],       key.w[0],      key.y[2],
          key.y[3],       key.w[2],       key.w[3],        key.groups,     key.stride[0], key.stride[1],
          key.padding[0], key.padding[1], key.dilation[0], key.dilation[1]};
}

/// patches[row - first][g][r][s][c] for output pixels [first, first + rows) of x[N,H,W,C]; 0 in the padding.
template <class T>
__global__ void patches_kernel(const T* x, T* patches, Sizes z, std::int64_t first, std::int64_t rows) {
  const std::int64_t width = z.patch(), channels = z.group_channels(), n = rows * width;
  for (std::int64_t i = grid_index(); i < n; i += grid_step()) {
    const std::int64_t row = first + i / width;
    const auto place = static_cast<int>(i % width);  // g, r, s, c
    const auto channel = place % static_cast<int>(channels), tap = place / static_cast<int>(channels);
    const auto s = tap % static_cast<int>(z.s), rest = tap / static_cast<int>(z.s);
    const auto r = rest % static_cast<int>(z.r), g = rest / static_cast<int>(z.r);
    const std::int64_t q = row % z.q, p = row / z.q % z.p, image = row / z.q / z.p;
    const std::int64_t h = p * z.stride_h - z.padding_h + r * z.dilation_h;
    const std::int64_t w = q * z.stride_w - z.padding_w + s * z.dilation_w;
    const bool inside = h >= 0 && h < z.h && w >= 0 && w < z.w;
    patches[i] = inside ? x[((image * z.h + h) * z.w + w) * z.c + g * channels + channel] : T(0.0f);
  }
}

/// dx of input rows [h0, h0 + rows) of `images` images from patch gradients of output rows [p0, p0 + p_rows) of the
/// same images: each input pixel gathers what every patch over it says, in a fixed order.
template <class T>
__global__ void gather_kernel(const T* patches, T* dx, Sizes z, std::int64_t images, std::int64_t h0, std::int64_t rows,
                              std::int64_t p0, std::int64_t p_rows) {
  const std::int64_t n = images * rows * z.w * z.c, channels = z.group_channels();
  for (std::int64_t i = grid_index(); i < n; i += grid_step()) {
    const std::int64_t c = i % z.c, w = i / z.c % z.w, h = h0 + i / z.c / z.w % rows, image = i / z.c / z.w / rows;
    const std::int64_t g = c / channels, channel = c % channels;
    float sum = 0;
    for (std::int64_t r = 0; r < z.r; ++r) {
      const std::int64_t ph = h + z.padding_h - r * z.dilation_h, p = ph / z.stride_h;
      if (ph < 0 || ph % z.stride_h != 0 || p >= z.p) continue;
      for (std::int64_t s = 0; s < z.s; ++s) {
        const std::int64_t qw = w + z.padding_w - s * z.dilation_w, q = qw / z.stride_w;
        if (qw < 0 || qw % z.stride_w != 0 || q >= z.q) continue;
        const std::int64_t row = (image * p_rows + p - p0) * z.q + q;
        sum += static_cast<float>(patches[row * z.patch() + ((g * z.r + r) * z.s + s) * channels + channel]);
      }
    }
    dx[((image * z.h + h) * z.w + w) * z.c + c] = T(sum);
  }
}

/// im2col and cuBLAS on NHWC tensors; NCHW tensors are converted.
class GemmRunner final : public ConvRunner {
 public:
  GemmRunner(const ConvKey& key, std::int64_t most_bytes)
      : pass_(key.which()),
        accumulate_(key.accumulate != 0),
        relu_(key.relu != 0),
        tf32_(key.tf32 != 0),
        dtype_(key.type()),
        z_(sizes_of(key)),
        element_(static_cast<std::int64_t>(size_of(dtype_))) {
    const std::int64_t total = z_.n * z_.p * z_.q;
    rows_ = std::min(total, kMaxRows);
    if (z_.is_pixel()) return;
    // A row of input pixels gathers from every output row that touches it.
    std::int64_t least = 1;
    if (pass_ == Pass::backward_data) least = std::min(rows_, (reach() / z_.stride_h + 1) * z_.q);
    rows_ = std::clamp<std::int64_t>(most_bytes / (z_.patch() * element_), least, rows_);
  }

  void run(Context& context, const ConvOperands& o) const override {
    if (o.a.layout() == Layout::nhwc) return run_nhwc(context, o, accumulate_);
    const Kernels& k = kernels(o.out);
    const auto nhwc = [&](const Tensor& t) {
      const Tensor copy = Tensor::empty(t.shape(), {t.dtype(), t.device(), Layout::nhwc});
      k.convert(t, copy);
      return copy;
    };
    const Tensor out = Tensor::empty(o.out.shape(), {o.out.dtype(), o.out.device(), Layout::nhwc});
    run_nhwc(context, {nhwc(o.a), nhwc(o.b), out, o.bias}, false);
    if (!accumulate_) return k.convert(out, o.out);
    const Tensor term = Tensor::empty(o.out.shape(), o.out.options());
    k.convert(out, term);
    k.add(o.out, term, o.out);
  }

  std::size_t workspace_bytes() const override {
    return z_.is_pixel() ? 0 : static_cast<std::size_t>(rows_ * z_.patch() * element_);
  }
  std::string api() const override { return "gemm"; }
  std::string name() const override { return "gemm"; }

 private:
  std::int64_t reach() const { return (z_.r - 1) * z_.dilation_h; }
  /// Group g of every row of a matrix `width` wide of which each group has a part.
  Matrix rows_of(const void* data, std::int64_t width) const { return {data, dtype_, width, false, width / z_.groups}; }
  /// w[K][R,S,Cg], one group after another.
  Matrix filters(const void* data, DType dtype) const {
    return {data, dtype, z_.group_patch(), false, z_.group_filters() * z_.group_patch()};
  }
  static Matrix transpose(Matrix m) {
    m.transposed = !m.transposed;
    return m;
  }
  const void* at(const Tensor& t, std::int64_t element) const {
    return static_cast<const char*>(t.raw_data()) + element * element_;
  }

  /// The patches of output pixels [first, first + rows): in `scratch`, or the input itself.
  const void* patches(Context& context, const Tensor& x, const Tensor& scratch, std::int64_t first,
                      std::int64_t rows) const {
    if (z_.is_pixel()) return at(x, first * z_.c);
    dispatch_floating("conv2d", x, [&]<class T>(T) {
      patches_kernel<<<blocks_for(context, rows * z_.patch()), kThreads, 0, context.stream()>>>(
          pointer<T>(x), pointer<T>(scratch), z_, first, rows);
    });
    CUTTLE_LAUNCHED("patches");
    return scratch.raw_data();
  }

  void run_nhwc(Context& context, const ConvOperands& o, bool accumulate) const {
    switch (pass_) {
      case Pass::forward: return forward(context, o);
      case Pass::backward_data: return backward_data(context, o);
      case Pass::backward_filter: return backward_filter(context, o, accumulate);
    }
  }

  void forward(Context& context, const ConvOperands& o) const {
    const Tensor scratch = scratch_bytes(context.index(), workspace_bytes());
    const std::int64_t total = z_.n * z_.p * z_.q;
    for (std::int64_t first = 0; first < total; first += rows_) {
      const std::int64_t rows = std::min(rows_, total - first);
      const void* x = patches(context, o.a, scratch, first, rows);
      gemm(context, rows, z_.group_filters(), z_.group_patch(), rows_of(x, z_.patch()),
           transpose(filters(o.b.raw_data(), dtype_)), rows_of(at(o.out, first * z_.k), z_.k), 0, tf32_, z_.groups);
    }
    add_bias_relu(o, relu_);
  }

  void backward_filter(Context& context, const ConvOperands& o, bool accumulate) const {
    const Tensor scratch = scratch_bytes(context.index(), workspace_bytes());
    // Several tiles add up in f32, whatever dw is.
    const bool in_place = dtype_ == DType::f32;
    const Tensor sum = in_place ? o.out : Tensor::empty({o.out.numel()}, {DType::f32, o.out.device()});
    const std::int64_t total = z_.n * z_.p * z_.q;
    for (std::int64_t first = 0; first < total; first += rows_) {
      const std::int64_t rows = std::min(rows_, total - first);
      const void* x = patches(context, o.b, scratch, first, rows);
      const float beta = first > 0 || (in_place && accumulate) ? 1.0f : 0.0f;
      gemm(context, z_.group_filters(), z_.group_patch(), rows, transpose(rows_of(at(o.a, first * z_.k), z_.k)),
           rows_of(x, z_.patch()), filters(sum.raw_data(), DType::f32), beta, tf32_, z_.groups);
    }
    if (!in_place) sum_parts(pointer<float>(sum), 1, o.out, accumulate);
  }

  void backward_data(Context& context, const ConvOperands& o) const {
    const Tensor w = o.b;
    const auto product = [&](std::int64_t first, std::int64_t rows, const void* out) {
      gemm(context, rows, z_.group_patch(), z_.group_filters(), rows_of(at(o.a, first * z_.k), z_.k),
           filters(w.raw_data(), dtype_), rows_of(out, z_.patch()), 0, tf32_, z_.groups);
    };
    if (z_.is_pixel()) {
      const std::int64_t total = z_.n * z_.p * z_.q;
      for (std::int64_t first = 0; first < total; first += rows_) {
        product(first, std::min(rows_, total - first), at(o.out, first * z_.c));
      }
      return;
    }
    // Whole images where they fit, else bands of input rows with every output row that touches them.
    const std::int64_t image = z_.p * z_.q;
    const std::int64_t images = std::max<std::int64_t>(1, rows_ / image);
    const std::int64_t band = rows_ < image ? rows_ / z_.q * z_.stride_h - reach() : z_.h;
    for (std::int64_t n = 0; n < z_.n; n += images) {
      const std::int64_t count = std::min(images, z_.n - n);
      for (std::int64_t h0 = 0; h0 < z_.h; h0 += band) {
        const std::int64_t rows = std::min(band, z_.h - h0);
        std::int64_t p0 = 0, p1 = z_.p;
        if (band < z_.h) {
          const std::int64_t lowest = h0 + z_.padding_h - reach(), highest = h0 + rows - 1 + z_.padding_h;
          p0 = std::clamp<std::int64_t>(lowest <= 0 ? 0 : (lowest + z_.stride_h - 1) / z_.stride_h, 0, z_.p - 1);
          p1 = std::clamp<std::int64_t>(highest / z_.stride_h + 1, p0 + 1, z_.p);
        }
        const std::int64_t patch_rows = count * (p1 - p0) * z_.q;
        const Tensor scratch =
            scratch_bytes(context.index(), static_cast<std::size_t>(patch_rows * z_.patch() * element_));
        product((n * z_.p + p0) * z_.q, patch_rows, scratch.raw_data());
        dispatch_floating("conv2d backward", o.out, [&]<class T>(T) {
          gather_kernel<<<blocks_for(context, count * rows * z_.w * z_.c), kThreads, 0, context.stream()>>>(
              pointer<T>(scratch), pointer<T>(o.out) + n * z_.h * z_.w * z_.c, z_, count, h0, rows, p0, p1 - p0);
        });
        CUTTLE_LAUNCHED("gather");
      }
    }
  }

  Pass pass_;
  bool accumulate_, relu_, tf32_;
  DType dtype_;
  Sizes z_;
  std::int64_t element_;
  std::int64_t rows_;  ///< output pixels whose patches are held at once
};

}  // namespace

ConvRunnerPtr gemm_runner(const ConvKey& key, Attempts& attempts) {
  const std::int64_t most = key.workspace_limit < 0 ? kPatchBytes : std::min(kPatchBytes, key.workspace_limit);
  auto runner = std::make_unique<GemmRunner>(key, most);
  if (key.fits(runner->workspace_bytes())) return runner;
  attempts.add("gemm", Attempts::too_large(runner->workspace_bytes(), key.workspace_limit));
  return nullptr;
}

}  // namespace cuttle::cuda
