#include "cuttle/nn.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cuttle/autograd.hpp"
#include "cuttle/error.hpp"

namespace ct = cuttle;
namespace nn = cuttle::nn;
using ct::Tensor;
using doctest::Approx;

namespace {

/// Conv, norm and linear layers under a nested path, as a user would write them.
struct Net : nn::Module {
  nn::Conv2d conv{2, 4, {.kernel = 3, .padding = 1}};
  nn::Sequential body{std::make_unique<nn::BatchNorm2d>(4), std::make_unique<nn::ReLU>()};
  nn::Linear fc{4, 3, {.bias = false}};
  Tensor gain = Tensor::ones({1});

  Net() {
    add("conv", conv);
    add("body", body);
    add("fc", fc);
    add_parameter("gain", gain);
  }
  Tensor forward(const Tensor& x) override { return fc(ct::flatten(ct::global_avg_pool2d(body(conv(x))))); }
  std::string kind() const override { return "Net"; }
};

/// Opens the registration to the tests.
struct Open : nn::Module {
  using nn::Module::add, nn::Module::add_buffer, nn::Module::add_parameter;
  Tensor forward(const Tensor& x) override { return x; }
};

std::vector<std::string> names(const std::vector<nn::NamedTensor>& tensors) {
  std::vector<std::string> list;
  for (const auto& t : tensors) list.push_back(t.name);
  return list;
}

using Names = std::vector<std::string>;

std::vector<nn::NamedTensor> copies(const std::vector<nn::NamedTensor>& tensors) {
  std::vector<nn::NamedTensor> list;
  for (const auto& t : tensors) list.push_back({t.name, t.tensor.detach().clone()});
  return list;
}

std::vector<std::vector<double>> values(const nn::Module& module) {
  std::vector<std::vector<double>> list;
  for (const auto& t : module.state()) list.push_back(t.tensor.to_vector<double>());
  return list;
}

struct Moments {
  double low, high, mean, variance;
};

Moments moments(const Tensor& t) {
  const std::vector<double> v = t.to_vector<double>();
  Moments m{v[0], v[0], 0, 0};
  for (const double x : v) {
    m.low = std::min(m.low, x);
    m.high = std::max(m.high, x);
    m.mean += x / static_cast<double>(v.size());
  }
  for (const double x : v) m.variance += (x - m.mean) * (x - m.mean) / static_cast<double>(v.size());
  return m;
}

/// Five standard errors of mean and variance; `kurtosis` is that of the distribution (1.8 uniform, 3 normal).
void check_moments(const Tensor& t, double mean, double variance, double kurtosis) {
  const Moments m = moments(t);
  const double n = static_cast<double>(t.numel());
  CHECK(std::abs(m.mean - mean) < 5 * std::sqrt(variance / n));
  CHECK(std::abs(m.variance - variance) < 5 * variance * std::sqrt((kurtosis - 1) / n));
}

void check_uniform(const Tensor& t, double bound) {
  const Moments m = moments(t);
  CHECK(m.low >= -bound);
  CHECK(m.high <= bound);
  check_moments(t, 0, bound * bound / 3, 1.8);
}

template <class E, class F> std::string message_of(const F& f) {
  try {
    f();
  } catch (const E& error) {
    return error.what();
  }
  return "nothing of that type was thrown";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("parameters, buffers and state come in PyTorch's order: own parameters, own buffers, then children") {
  Net net;
  CHECK(names(net.named_parameters()) ==
        Names{"gain", "conv.weight", "conv.bias", "body.0.weight", "body.0.bias", "fc.weight"});
  CHECK(names(net.named_buffers()) == Names{"body.0.running_mean", "body.0.running_var", "body.0.num_batches_tracked"});
  CHECK(names(net.state()) == Names{"gain", "conv.weight", "conv.bias", "body.0.weight", "body.0.bias",
                                    "body.0.running_mean", "body.0.running_var", "body.0.num_batches_tracked",
                                    "fc.weight"});
  Names paths;
  for (const auto& [path, module] : net.named_modules()) paths.push_back(path + ":" + module->kind());
  CHECK(paths == Names{":Net", "conv:Conv2d", "body:Sequential", "body.0:BatchNorm2d", "body.1:ReLU", "fc:Linear"});
  for (const Tensor& p : net.parameters()) CHECK(p.requires_grad());
  for (const auto& b : net.named_buffers()) CHECK_FALSE(b.tensor.requires_grad());
}

TEST_CASE("a weight that is tied under two names is one parameter but two entries of the state") {
  Open net;
  nn::Linear a(3, 3), b(3, 3);
  net.add("a", a);
  net.add("again", a);
  net.add("b", b);
  CHECK(names(net.named_parameters()) == Names{"a.weight", "a.bias", "b.weight", "b.bias"});
  CHECK(net.state().size() == 6);
}

TEST_CASE("names that are taken, empty or dotted are refused, and so are cycles, and nothing is registered then") {
  Open net, child;
  nn::ReLU relu;
  Tensor t = Tensor::zeros({2}), undefined;
  net.add("child", child);
  net.add_parameter("weight", t);
  CHECK(contains(message_of<ct::UsageError>([&] { net.add("child", relu); }), "'child'"));
  CHECK_THROWS_AS(net.add("weight", relu), ct::UsageError);
  CHECK_THROWS_AS(net.add_buffer("weight", t), ct::UsageError);
  CHECK_THROWS_AS(net.add_parameter("child", t), ct::UsageError);
  CHECK_THROWS_AS(net.add("", relu), ct::UsageError);
  CHECK(contains(message_of<ct::UsageError>([&] { net.add("a.b", relu); }), "'a.b'"));
  CHECK_THROWS_AS(net.add("self", net), ct::UsageError);
  CHECK_THROWS_AS(child.add("parent", net), ct::UsageError);
  CHECK_THROWS_AS(net.add_buffer("nothing", undefined), ct::UsageError);
  Tensor whole = Tensor::zeros({2}, {.dtype = ct::DType::i64});
  CHECK_THROWS_AS(net.add_parameter("whole", whole), ct::DtypeError);
  CHECK(net.named_modules().size() == 2);
  CHECK(net.state().size() == 1);
  CHECK_THROWS_AS(nn::Sequential().push_back(nullptr), ct::UsageError);
}

TEST_CASE("train and eval reach every module below") {
  Net net;
  net.eval();
  for (const auto& [path, module] : net.named_modules()) CHECK_FALSE(module->training());
  net.train();
  for (const auto& [path, module] : net.named_modules()) CHECK(module->training());
}

TEST_CASE("moving a module changes the tensors that others hold, and drops gradients only where something changed") {
  Net net;
  const std::vector<Tensor> held = net.parameters();
  const std::vector<double> before = net.conv.weight.to_vector<double>();
  for (Tensor p : held) p.set_grad(Tensor::ones(p.shape(), p.options()));

  net.to(ct::kCpu);
  for (const Tensor& p : held) CHECK(p.grad().defined());

  net.to(ct::Layout::nchw);
  CHECK(net.conv.weight.layout() == ct::Layout::nchw);
  CHECK(net.conv.weight.to_vector<double>() == before);
  CHECK_FALSE(net.conv.weight.grad().defined());
  CHECK(net.fc.weight.grad().defined());

  net.to(ct::DType::f64);
  for (const Tensor& p : held) CHECK(p.dtype() == ct::DType::f64);
  CHECK(held[1].to_vector<double>() == before);
  CHECK(held[1].requires_grad());
  CHECK(net.state()[7].tensor.dtype() == ct::DType::i64);  // num_batches_tracked
  CHECK_THROWS_AS(net.to(ct::DType::i32), ct::DtypeError);
}

TEST_CASE("a module in a 16-bit type keeps its norms in f32") {
  Net net;
  net.to(ct::DType::bf16);
  for (const auto& t : net.state()) {
    if (t.name == "body.0.num_batches_tracked") continue;
    CAPTURE(t.name);
    CHECK(t.tensor.dtype() == (t.name.starts_with("body.0") ? ct::DType::f32 : ct::DType::bf16));
  }
}

TEST_CASE("zero_grad drops every gradient") {
  Net net;
  ct::sum(net(Tensor::randn({2, 2, 5, 5}))).backward();
  CHECK(net.conv.weight.grad().defined());
  net.zero_grad();
  for (const Tensor& p : net.parameters()) CHECK_FALSE(p.grad().defined());
}

TEST_CASE(
    "an observer sees inner modules first with their outputs, the innermost scope alone, and nothing afterwards") {
  Net net;
  Names seen, inner_seen;
  Tensor last;
  const Tensor x = Tensor::randn({2, 2, 5, 5});
  {
    nn::ObserverScope scope([&](nn::Module& m, const Tensor& out) {
      seen.push_back(m.kind());
      last = out;
    });
    const Tensor y = net(x);
    CHECK(last.shared() == y.shared());
    {
      nn::ObserverScope inner([&](nn::Module& m, const Tensor&) { inner_seen.push_back(m.kind()); });
      net.fc(Tensor::ones({1, 4}));
    }
    net.fc(Tensor::ones({1, 4}));
  }
  net(x);
  CHECK(seen == Names{"Conv2d", "BatchNorm2d", "ReLU", "Sequential", "Linear", "Net", "Linear"});
  CHECK(inner_seen == Names{"Linear"});
}

TEST_CASE("Sequential runs its modules in order and emplace returns the module it made") {
  nn::Sequential net;
  nn::Linear& first = net.emplace<nn::Linear>(2, 2);
  net.emplace<nn::ReLU>(nn::ReLUOptions{.inplace = true});
  net.emplace<nn::Linear>(2, 1, nn::LinearOptions{.bias = false});
  nn::init::constant_(first.weight, 1);
  first.bias.set_data(Tensor::from<float>({-10, 1}, {2}));
  nn::init::constant_(net[2].parameters()[0], 2);
  // relu(1 + 2 - 10) = 0 and relu(1 + 2 + 1) = 4, each doubled and summed.
  CHECK(net(Tensor::from<float>({1, 2}, {1, 2})).item<float>() == 8);
  CHECK(net.size() == 3);
  CHECK(nn::Sequential().forward(Tensor::ones({1})).item<float>() == 1);
}

TEST_CASE("impossible layer options are refused at construction with the arithmetic") {
  const std::string groups = message_of<ct::ShapeError>([] { nn::Conv2d(7, 8, {.kernel = 3, .groups = 2}); });
  CHECK(contains(groups, "Conv2d(7, 8)"));
  CHECK(contains(groups, "7 = 2*3 + 1"));
  CHECK(contains(message_of<ct::ShapeError>([] { nn::Conv2d(4, 6, {.kernel = 3, .groups = 4}); }), "6 = 4*1 + 2"));
  CHECK(contains(message_of<ct::ShapeError>([] { nn::Conv2d(0, 8, {}); }), "input channels = 0"));
  CHECK_THROWS_AS(nn::Conv2d(3, 0, {}), ct::ShapeError);
  CHECK_THROWS_AS(nn::Conv2d(3, -4, {}), ct::ShapeError);
  CHECK_THROWS_AS(nn::Conv2d(3, 8, {.kernel = 0}), ct::ShapeError);
  CHECK(contains(message_of<ct::ShapeError>([] { nn::Conv2d(3, 8, {.kernel = {3, 0}}); }), "3x0"));
  CHECK_THROWS_AS(nn::Conv2d(3, 8, {.stride = 0}), ct::ShapeError);
  CHECK_THROWS_AS(nn::Conv2d(3, 8, {.padding = -1}), ct::ShapeError);
  CHECK_THROWS_AS(nn::Conv2d(3, 8, {.dilation = 0}), ct::ShapeError);
  CHECK_THROWS_AS(nn::Conv2d(3, 8, {.groups = 0}), ct::ShapeError);
  CHECK_THROWS_AS(nn::Linear(0, 8), ct::ShapeError);
  CHECK_THROWS_AS(nn::Linear(8, 0), ct::ShapeError);
  CHECK_THROWS_AS(nn::BatchNorm2d(0), ct::ShapeError);
  CHECK_THROWS_AS(nn::BatchNorm2d(4, {.eps = 0}), ct::UsageError);
  CHECK_THROWS_AS(nn::BatchNorm2d(4, {.momentum = 1.5}), ct::UsageError);
  CHECK_THROWS_AS(nn::BatchNorm2d(4, {.momentum = std::nan("")}), ct::UsageError);
  CHECK_THROWS_AS(nn::Dropout(-0.1), ct::UsageError);
  CHECK(contains(message_of<ct::UsageError>([] { nn::Dropout(1.1); }), "1.1"));
  CHECK_THROWS_AS(nn::MaxPool2d({.kernel = 0}), ct::ShapeError);
  CHECK_THROWS_AS(nn::MaxPool2d({.kernel = 2, .stride = -1}), ct::ShapeError);
  CHECK(contains(message_of<ct::ShapeError>([] { nn::MaxPool2d({.kernel = 3, .padding = 2}); }), "2x2"));
  CHECK_THROWS_AS(nn::AvgPool2d({.kernel = 2, .dilation = 2}), ct::UsageError);
  CHECK_THROWS_AS(nn::AdaptiveAvgPool2d(0), ct::ShapeError);
}

TEST_CASE("layers are the ops with their options and mode") {
  const Tensor x = Tensor::randn({2, 4, 7, 6});
  const auto same = [](const Tensor& a, const Tensor& b) {
    CHECK(a.shape() == b.shape());
    CHECK(a.to_vector<float>() == b.to_vector<float>());
  };
  nn::Conv2d conv(4, 6, {.kernel = {3, 2}, .stride = {2, 1}, .padding = {1, 0}, .dilation = {1, 2}, .groups = 2});
  same(conv(x),
       ct::conv2d(x, conv.weight, conv.bias, {.stride = {2, 1}, .padding = {1, 0}, .dilation = {1, 2}, .groups = 2}));
  const ct::Pool2dOptions pool{.kernel = 3, .stride = 2, .padding = 1, .ceil_mode = true};
  same(nn::MaxPool2d(pool)(x), ct::max_pool2d(x, pool));
  same(nn::AvgPool2d(pool)(x), ct::avg_pool2d(x, pool));
  same(nn::AdaptiveAvgPool2d({3, 2})(x), ct::adaptive_avg_pool2d(x, {3, 2}));
  same(nn::Flatten()(x), ct::flatten(x));
  same(nn::ReLU()(x), ct::relu(x));
  same(nn::ReLU6()(ct::mul(x, 10)), ct::relu6(ct::mul(x, 10)));
  CHECK(nn::Identity()(x).shared() == x.shared());

  nn::Dropout dropout(0.5);
  const std::vector<float> dropped = dropout(x).to_vector<float>();
  CHECK(std::count(dropped.begin(), dropped.end(), 0.0f) > x.numel() / 4);
  dropout.eval();
  same(dropout(x), x);

  Tensor changed = x.clone();
  nn::ReLU({.inplace = true})(changed);
  same(changed, ct::relu(x));
  Tensor cut = ct::mul(x, 10);
  nn::ReLU6({.inplace = true})(cut);
  same(cut, ct::relu6(ct::mul(x, 10)));
}

TEST_CASE("BatchNorm2d counts and follows training batches and uses what it learned in evaluation") {
  nn::BatchNorm2d bn(2, {.eps = 1e-5, .momentum = 0.25});
  // Channel 0 holds 1,2,3,6 (mean 3, unbiased variance 14/3), channel 1 is constant 5.
  const Tensor x = Tensor::from<float>({1, 2, 5, 5, 3, 6, 5, 5}, {2, 2, 1, 2});
  bn(x);
  CHECK(bn.num_batches_tracked.item<std::int64_t>() == 1);
  CHECK(bn.running_mean.to_vector<double>()[0] == Approx(0.25 * 3));
  CHECK(bn.running_mean.to_vector<double>()[1] == Approx(0.25 * 5));
  CHECK(bn.running_var.to_vector<double>()[0] == Approx(0.75 + 0.25 * 14 / 3));
  CHECK(bn.running_var.to_vector<double>()[1] == Approx(0.75));
  bn(x);
  CHECK(bn.num_batches_tracked.item<std::int64_t>() == 2);

  bn.eval();
  const double mean = bn.running_mean.to_vector<double>()[0], var = bn.running_var.to_vector<double>()[0];
  CHECK(bn(x).to_vector<double>()[0] == Approx((1 - mean) / std::sqrt(var + 1e-5)));
  CHECK(bn.num_batches_tracked.item<std::int64_t>() == 2);
  CHECK(bn.running_mean.to_vector<double>()[0] == mean);
}

TEST_CASE("the default initialisation is PyTorch's: uniform within one over the root of the fan-in") {
  ct::manual_seed(7);
  nn::Conv2d conv(32, 4000, {.kernel = {3, 2}, .groups = 2});  // each filter sees 16 channels of 3x2
  check_uniform(conv.weight, 1 / std::sqrt(16.0 * 3 * 2));
  check_uniform(conv.bias, 1 / std::sqrt(16.0 * 3 * 2));
  nn::Linear linear(50, 4000);
  check_uniform(linear.weight, 1 / std::sqrt(50.0));
  check_uniform(linear.bias, 1 / std::sqrt(50.0));
}

TEST_CASE("initialisers follow their formulas") {
  ct::manual_seed(8);
  const Tensor filter = Tensor::empty({128, 64, 3, 3}), matrix = Tensor::empty({300, 200}),
               vector = Tensor::empty({40000});
  nn::init::kaiming_normal_(filter);
  check_moments(filter, 0, 2.0 / (64 * 9), 3);
  nn::init::kaiming_normal_(filter, 0, nn::init::Fan::out);
  check_moments(filter, 0, 2.0 / (128 * 9), 3);
  nn::init::kaiming_uniform_(matrix, 0.5);
  check_uniform(matrix, std::sqrt(3 * 2 / (1.25 * 200)));
  nn::init::kaiming_uniform_(matrix, 0, nn::init::Fan::out);
  check_uniform(matrix, std::sqrt(3 * 2 / 300.0));
  nn::init::normal_(vector, 2, 0.5);
  check_moments(vector, 2, 0.25, 3);
  nn::init::uniform_(vector, 1, 3);
  check_moments(vector, 2, 4.0 / 12, 1.8);
  nn::init::constant_(vector, 0.25);
  CHECK(moments(vector).low == 0.25);
  CHECK(moments(vector).high == 0.25);
  CHECK_THROWS_AS(nn::init::kaiming_uniform_(vector), ct::ShapeError);
  CHECK_THROWS_AS(nn::init::normal_(Tensor::zeros({2}, {.dtype = ct::DType::i64}), 0, 1), ct::DtypeError);
}

TEST_CASE("equal seeds give equal models and successive models differ") {
  ct::manual_seed(3);
  const Net a, b;
  ct::manual_seed(3);
  const Net c;
  CHECK(values(a) == values(c));
  CHECK(values(a) != values(b));
}

TEST_CASE("an initialiser that changes a weight saved for backward is noticed") {
  nn::Linear linear(3, 2);
  Tensor x = Tensor::ones({1, 3});
  x.requires_grad_();
  const Tensor loss = ct::sum(linear(x));
  nn::init::normal_(linear.weight, 0, 1);
  CHECK(contains(message_of<ct::AutogradError>([&] { loss.backward(); }), "normal_"));
}

TEST_CASE("a state loads into another model by name, whatever its order, layout and dtype") {
  Net from, to;
  from(Tensor::randn({4, 2, 5, 5}));
  CHECK(values(from) != values(to));
  std::vector<nn::NamedTensor> state = copies(from.state());
  for (auto& t : state) {
    if (t.tensor.rank() == 4) t.tensor = t.tensor.to(ct::Layout::nchw);
    if (t.tensor.dtype() == ct::DType::f32) t.tensor = t.tensor.to(ct::DType::f64);
  }
  std::reverse(state.begin(), state.end());
  const Tensor held = to.conv.weight;
  nn::load_state(to, state);
  CHECK(values(from) == values(to));
  CHECK(held.to_vector<double>() == from.conv.weight.to_vector<double>());
  CHECK(held.dtype() == ct::DType::f32);
  CHECK(held.layout() == ct::Layout::nhwc);
}

TEST_CASE("a state that does not fit changes nothing and the error lists all that is wrong") {
  Net net, other;
  const auto before = values(net);
  std::vector<nn::NamedTensor> state = copies(other.state());
  state.erase(state.begin());                   // gain
  state.back().tensor = Tensor::zeros({5, 4});  // fc.weight is [3,4]
  state.push_back({"head.weight", Tensor::zeros({1})});
  state.push_back({"conv.bias", Tensor::zeros({4})});
  const std::string message = message_of<ct::CheckpointError>([&] { nn::load_state(net, state); });
  CHECK(contains(message, "missing gain"));
  CHECK(contains(message, "unexpected head.weight"));
  CHECK(contains(message, "fc.weight is [5,4] instead of [3,4]"));
  CHECK(contains(message, "conv.bias stands twice"));
  CHECK(values(net) == before);
}

TEST_CASE("a state of equal size in another shape is refused") {
  nn::Linear net(4, 3, {.bias = false});
  CHECK_THROWS_AS(nn::load_state(net, {{"weight", Tensor::zeros({3, 4, 1, 1})}}), ct::CheckpointError);
  CHECK_THROWS_AS(nn::load_state(net, {{"weight", Tensor::zeros({4, 3})}}), ct::CheckpointError);
  CHECK_THROWS_AS(nn::load_state(net, {{"weight", Tensor()}}), ct::CheckpointError);
}
