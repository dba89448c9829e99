// GFLOP/s of every pass of typical layers on the CPU. usage: conv_bench [threads] [repeats] [name]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string_view>

#include "cuttle/cuttle.hpp"
#include "kernels.hpp"

using namespace cuttle;

namespace {

struct Layer {
  const char* name;
  std::int64_t n, c, size, k, kernel;
  Conv2dOptions o = {};
};

const Layer kLayers[] = {
    {"lenet conv1", 128, 1, 28, 32, 3, {.padding = 1}},
    {"lenet conv2", 128, 32, 14, 64, 3, {.padding = 1}},
    {"cifar stem", 128, 3, 32, 64, 3, {.padding = 1}},
    {"cifar stage1", 128, 64, 32, 64, 3, {.padding = 1}},
    {"cifar stage2 down", 128, 64, 32, 128, 3, {.stride = 2, .padding = 1}},
    {"cifar stage2", 128, 128, 16, 128, 3, {.padding = 1}},
    {"cifar shortcut", 128, 64, 32, 128, 1, {.stride = 2}},
    {"cifar stage3", 128, 256, 8, 256, 3, {.padding = 1}},
    {"cifar stage4", 128, 512, 4, 512, 3, {.padding = 1}},
    {"imagenet stem", 8, 3, 224, 64, 7, {.stride = 2, .padding = 3}},
    {"bottleneck 1x1", 8, 256, 56, 64, 1},
    {"depthwise", 8, 96, 56, 96, 3, {.padding = 1, .groups = 96}},
};

Tensor random(const Shape& shape) {
  const Tensor t = Tensor::empty(shape);
  float* data = static_cast<float*>(t.raw_mutable_data());
  for (std::int64_t i = 0; i < t.numel(); ++i) data[i] = static_cast<float>(i * 7919 % 1000) / 1000 - 0.5f;
  return t;
}

template <class Call> double fastest_seconds(int repeats, Call call) {
  using Clock = std::chrono::steady_clock;
  double best = 1e9;
  for (int i = 0; i < repeats; ++i) {
    const auto start = Clock::now();
    call();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return best;
}

void print(const char* name, const char* pass, double flop, double seconds) {
  fmt::print("{:<20} {:<16} {:>9.3f} ms {:>8.1f} GFLOP/s\n", name, pass, seconds * 1e3, flop / seconds / 1e9);
}

void measure_layer(const Layer& l, int repeats) {
  const std::int64_t places = (l.size + 2 * l.o.padding.h - l.kernel) / l.o.stride.h + 1;
  const Tensor x = random({l.n, l.c, l.size, l.size}), w = random({l.k, l.c / l.o.groups, l.kernel, l.kernel});
  const Tensor bias = random({l.k}), y = random({l.n, l.k, places, places});
  const Kernels& k = kernels(x);
  const double flop = 2.0 * static_cast<double>(y.numel()) * static_cast<double>(w.numel() / l.k);
  print(l.name, "forward", flop, fastest_seconds(repeats, [&] { k.conv2d(x, w, bias, l.o, false, y); }));
  print(l.name, "backward data", flop, fastest_seconds(repeats, [&] { k.conv2d_backward_data(y, w, l.o, x); }));
  print(l.name, "backward filter", flop,
        fastest_seconds(repeats, [&] { k.conv2d_backward_filter(y, x, l.o, w, false); }));
  print(l.name, "bias", static_cast<double>(y.numel()),
        fastest_seconds(repeats, [&] { k.bias_backward(y, bias, false); }));
}

struct LinearLayer {
  const char* name;
  std::int64_t m, in, out;
};

const LinearLayer kLinearLayers[] = {{"lenet fc1", 128, 3136, 128}, {"lenet fc2", 128, 128, 10}};

void measure_linear(const LinearLayer& layer, int repeats) {
  const auto [name, m, in, out] = layer;
  const Tensor x = random({m, in}), w = random({out, in}), bias = random({out}), y = random({m, out});
  const Kernels& k = kernels(x);
  const double flop = 2.0 * static_cast<double>(m * in * out);
  print(name, "forward", flop, fastest_seconds(repeats, [&] { k.linear(x, w, bias, false, y); }));
  print(name, "backward data", flop, fastest_seconds(repeats, [&] { k.linear_backward_data(y, w, x); }));
  print(name, "backward weight", flop, fastest_seconds(repeats, [&] { k.linear_backward_weight(y, x, w, false); }));
}

}  // namespace

int main(int argc, char** argv) {
  set_num_threads(argc > 1 ? std::atoi(argv[1]) : 0);
  const int repeats = argc > 2 ? std::atoi(argv[2]) : 20;
  fmt::print("{} threads, f32, NHWC, fastest of {}\n", num_threads(), repeats);
  const std::string_view wanted = argc > 3 ? argv[3] : "";
  const auto is_wanted = [&](std::string_view name) { return name.find(wanted) != name.npos; };
  for (const Layer& layer : kLayers) {
    if (is_wanted(layer.name)) measure_layer(layer, repeats);
  }
  for (const LinearLayer& layer : kLinearLayers) {
    if (is_wanted(layer.name)) measure_linear(layer, repeats);
  }
}
