#include "cpu/norm_reduce.hpp"

#include <algorithm>

#include "cpu/dispatch.hpp"

/// Both reductions sum short blocks of rows in the tensor's own type, which is fast, and the blocks in double, which
/// is accurate. Blocks are gathered in slabs whose number depends on the shape alone, and slabs are added in order, so
/// results do not depend on the number of threads.
namespace cuttle::cpu {
namespace {

constexpr std::int64_t kBlockRows = 32;
constexpr std::int64_t kMaxSlabs = 64;

/// Rows [begin, end) of each slab, by parallel_for over slabs.
template <class Body> std::int64_t for_slabs(const Columns& at, Body body) {
  const std::int64_t slabs = std::clamp<std::int64_t>(at.rows / std::max(kBlockRows, row_grain(at.cols)), 1, kMaxSlabs);
  parallel_for(slabs, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t slab = first; slab < last; ++slab)
      body(slab, at.rows * slab / slabs, at.rows * (slab + 1) / slabs);
  });
  return slabs;
}

/// Mean and sum of squared deviations of `count` values in each of several columns.
struct Moments {
  double count = 0;
  std::vector<double> mean, deviations;

  explicit Moments(std::int64_t cols = 0)
      : mean(static_cast<std::size_t>(cols)), deviations(static_cast<std::size_t>(cols)) {}

  /// Adds columns of other values: Chan, Golub & LeVeque, "Updating formulae and a pairwise algorithm for computing
  /// sample variances" (1979).
  void merge(double other_count, const double* other_mean, const double* other_deviations) {
    const double share = other_count / (count + other_count), weight = count * share;
    for (std::size_t c = 0; c < mean.size(); ++c) {
      const double delta = other_mean[c] - mean[c];
      mean[c] += delta * share;
      deviations[c] += other_deviations[c] + delta * delta * weight;
    }
    count += other_count;
  }
};

template <class T> void add_row(const T* __restrict x, T* __restrict sum, std::int64_t cols) {
  for (std::int64_t c = 0; c < cols; ++c) sum[c] += x[c];
}

template <class T>
void add_deviations(const T* __restrict x, const T* __restrict center, T* __restrict sum, T* __restrict squares,
                    std::int64_t cols) {
  for (std::int64_t c = 0; c < cols; ++c) {
    const T deviation = x[c] - center[c];
    sum[c] += deviation;
    squares[c] += deviation * deviation;
  }
}

/// Moments of rows that fit the cache, in two passes.
template <class T> class BlockMoments {
 public:
  explicit BlockMoments(std::int64_t cols)
      : cols_(cols), center_(size()), sum_(size()), squares_(size()), mean_(size()), deviations_(size()) {}

  void add_to(Moments& moments, const T* x, std::int64_t rows) {
    std::fill(center_.begin(), center_.end(), T{0});
    std::fill(sum_.begin(), sum_.end(), T{0});
    std::fill(squares_.begin(), squares_.end(), T{0});
    for (std::int64_t r = 0; r < rows; ++r) add_row(x + r * cols_, center_.data(), cols_);
    for (T& center : center_) center /= static_cast<T>(rows);
    for (std::int64_t r = 0; r < rows; ++r) {
      add_deviations(x + r * cols_, center_.data(), sum_.data(), squares_.data(), cols_);
    }
    const double n = static_cast<double>(rows);
    for (std::size_t c = 0; c < size(); ++c) {
      // The deviations from the rounded mean do not quite add to zero; what is left corrects it.
      const double rest = static_cast<double>(sum_[c]) / n;
      mean_[c] = static_cast<double>(center_[c]) + rest;
      deviations_[c] = static_cast<double>(squares_[c]) - n * rest * rest;
    }
    moments.merge(n, mean_.data(), deviations_.data());
  }

 private:
  std::size_t size() const { return static_cast<std::size_t>(cols_); }

  std::int64_t cols_;
  std::vector<T> center_, sum_, squares_;
  std::vector<double> mean_, deviations_;
};

template <class T> ChannelMoments moments_of(const T* x, const Columns& at) {
  std::vector<Moments> slabs(kMaxSlabs, Moments(0));
  const std::int64_t used = for_slabs(at, [&](std::int64_t slab, std::int64_t begin, std::int64_t end) {
    Moments moments(at.cols);
    BlockMoments<T> block(at.cols);
    for (std::int64_t r = begin; r < end; r += kBlockRows) {
      block.add_to(moments, x + r * at.cols, std::min(kBlockRows, end - r));
    }
    slabs[static_cast<std::size_t>(slab)] = std::move(moments);
  });
  Moments channels(at.channels);
  for (std::size_t slab = 0; slab < static_cast<std::size_t>(used); ++slab) {
    const Moments& moments = slabs[slab];
    for (std::size_t c = 0; c < moments.mean.size(); c += channels.mean.size()) {
      channels.merge(moments.count, &moments.mean[c], &moments.deviations[c]);
    }
  }
  return {std::move(channels.mean), std::move(channels.deviations)};
}

template <class T>
void add_products(const T* __restrict dy, const T* __restrict x, const T* __restrict center, T* __restrict sum,
                  T* __restrict products, std::int64_t cols) {
  for (std::int64_t c = 0; c < cols; ++c) {
    sum[c] += dy[c];
    products[c] += dy[c] * (x[c] - center[c]);
  }
}

template <class T> GradientSums sums_of(const T* dy, const T* x, const std::vector<T>& center, const Columns& at) {
  const std::size_t cols = static_cast<std::size_t>(at.cols);
  std::vector<GradientSums> slabs(kMaxSlabs);
  const std::int64_t used = for_slabs(at, [&](std::int64_t slab, std::int64_t begin, std::int64_t end) {
    GradientSums total{std::vector<double>(cols), std::vector<double>(cols)};
    std::vector<T> sum(cols), products(cols);
    for (std::int64_t block = begin; block < end; block += kBlockRows) {
      std::fill(sum.begin(), sum.end(), T{0});
      std::fill(products.begin(), products.end(), T{0});
      for (std::int64_t r = block; r < std::min(block + kBlockRows, end); ++r) {
        add_products(dy + r * at.cols, x + r * at.cols, center.data(), sum.data(), products.data(), at.cols);
      }
      for (std::size_t c = 0; c < cols; ++c) {
        total.dy[c] += static_cast<double>(sum[c]);
        total.dy_centered[c] += static_cast<double>(products[c]);
      }
    }
    slabs[static_cast<std::size_t>(slab)] = std::move(total);
  });
  const std::size_t channels = static_cast<std::size_t>(at.channels);
  GradientSums result{std::vector<double>(channels), std::vector<double>(channels)};
  for (std::size_t slab = 0; slab < static_cast<std::size_t>(used); ++slab) {
    for (std::size_t c = 0; c < cols; ++c) {
      result.dy[c % channels] += slabs[slab].dy[c];
      result.dy_centered[c % channels] += slabs[slab].dy_centered[c];
    }
  }
  return result;
}

}  // namespace

ChannelMoments channel_moments(const Tensor& x) {
  ChannelMoments result;
  dispatch_floating("batch_norm2d", x, [&]<class T>(T) { result = moments_of(x.data<T>(), columns_of(x)); });
  return result;
}

GradientSums gradient_sums(const Tensor& dy, const Tensor& x, const std::vector<double>& center) {
  GradientSums result;
  dispatch_floating("batch_norm2d backward", x, [&]<class T>(T) {
    const Columns at = columns_of(x);
    result = sums_of(dy.data<T>(), x.data<T>(), per_column<T>(center, at), at);
  });
  return result;
}

}  // namespace cuttle::cpu
