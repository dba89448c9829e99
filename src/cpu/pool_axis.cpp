#include "cpu/pool_axis.hpp"

#include <algorithm>

namespace cuttle::cpu {

Axis pooling_axis(std::int64_t input, std::int64_t output, const AxisOptions& options) {
  Axis axis{input, options.dilation, {}};
  for (std::int64_t p = 0; p < output; ++p) {
    const std::int64_t start = p * options.stride - options.padding;
    Window window{};
    while (window.first_tap < options.kernel && start + window.first_tap * options.dilation < 0) ++window.first_tap;
    window.first = start + window.first_tap * options.dilation;
    std::int64_t end_tap = window.first_tap;
    while (end_tap < options.kernel && start + end_tap * options.dilation < input) ++end_tap;
    window.count = end_tap - window.first_tap;
    // PyTorch counts the padding but not what ceil_mode lets a window reach beyond it.
    const std::int64_t padded_end = std::min(start + options.kernel, input + options.padding);
    window.divisor = static_cast<double>(options.count_include_pad ? padded_end - start : window.count);
    axis.windows.push_back(window);
  }
  return axis;
}

Axis adaptive_axis(std::int64_t input, std::int64_t output) {
  Axis axis{input, 1, {}};
  for (std::int64_t p = 0; p < output; ++p) {
    const std::int64_t first = p * input / output, end = ((p + 1) * input + output - 1) / output;
    axis.windows.push_back({first, 0, end - first, static_cast<double>(end - first)});
  }
  return axis;
}

Readers::Readers(const Axis& axis) : begin_(static_cast<std::size_t>(axis.input) + 1) {
  const auto for_each = [&](auto&& visit) {
    for (std::int64_t p = 0; p < axis.output(); ++p) {
      const Window& window = axis.windows[static_cast<std::size_t>(p)];
      for (std::int64_t t = 0; t < window.count; ++t) {
        visit(static_cast<std::size_t>(window.first + t * axis.step), Reader{p, window.first_tap + t});
      }
    }
  };
  for_each([&](std::size_t input, Reader) { ++begin_[input + 1]; });
  for (std::size_t i = 1; i < begin_.size(); ++i) begin_[i] += begin_[i - 1];
  readers_.resize(begin_.back());
  std::vector<std::size_t> next = begin_;
  for_each([&](std::size_t input, Reader reader) { readers_[next[input]++] = reader; });
}

std::span<const Reader> Readers::of(std::int64_t input) const {
  const std::size_t i = static_cast<std::size_t>(input);
  return std::span(readers_).subspan(begin_[i], begin_[i + 1] - begin_[i]);
}

Images::Images(const Tensor& t) : count(t.size(0)), height(t.size(2)), width(t.size(3)), channels(t.size(1)) {
  if (t.layout() == Layout::nchw) {
    count *= channels;
    channels = 1;
  }
}

}  // namespace cuttle::cpu
