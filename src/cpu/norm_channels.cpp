#include "cpu/norm_channels.hpp"

#include "cpu/dispatch.hpp"

namespace cuttle::cpu {

std::vector<double> channel_values(const Tensor& t, std::int64_t channels, double fallback) {
  if (!t.defined()) return std::vector<double>(static_cast<std::size_t>(channels), fallback);
  std::vector<double> values;
  dispatch_floating("channel values", t, [&]<class T>(T) { values.assign(t.data<T>(), t.data<T>() + channels); });
  return values;
}

void store_channel_values(const std::vector<double>& values, const Tensor& t) {
  if (!t.defined()) return;
  dispatch_floating("channel values", t, [&]<class T>(T) {
    std::transform(values.begin(), values.end(), writable<T>(t), [](double value) { return static_cast<T>(value); });
  });
}

Columns columns_of(const Tensor& nhwc) {
  constexpr std::int64_t kWanted = 64;
  const std::int64_t channels = nhwc.size(1), pixels = nhwc.size(0) * nhwc.size(2) * nhwc.size(3);
  std::int64_t fold = std::clamp<std::int64_t>(kWanted / channels, 1, pixels);
  while (pixels % fold != 0) --fold;
  return {pixels / fold, channels * fold, channels};
}

}  // namespace cuttle::cpu
