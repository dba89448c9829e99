#include <doctest/doctest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "cuttle/conv.hpp"
#include "cuttle/error.hpp"
#include "cuttle/models.hpp"
#include "cuttle/nn.hpp"

using namespace cuttle;

namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

/// Cause and hint of the UsageError that a call throws.
template <class Call> std::string refusal(Call&& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.cause() + " / " + error.hint();
  }
  return "nothing was thrown";
}

std::string refusal_of_rule(const char* text) {
  return refusal([&] { parse_conv_rule(text); });
}

/// A variable of the environment while it lives.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

nn::Conv2d& conv_of(nn::Module& model, const std::string& wanted) {
  for (const auto& [name, module] : model.named_modules()) {
    if (name == wanted) return dynamic_cast<nn::Conv2d&>(*module);
  }
  throw UsageError("no layer " + wanted);
}

}  // namespace

TEST_CASE("lists of algorithms are taken apart, and wrong names list the right ones") {
  using Names = std::vector<std::string>;
  CHECK(parse_choices(ConvPass::forward, "") == Names{"auto"});
  CHECK(parse_choices(ConvPass::forward, "WINOGRAD|engine:65,k2=5,k13=1|gemm|auto") ==
        Names{"WINOGRAD", "engine:65,k2=5,k13=1", "gemm", "auto"});
  const auto refused = [](ConvPass pass, const char* list) { return refusal([&] { parse_choices(pass, list); }); };
  CHECK(contains(refused(ConvPass::forward, "MAGIC"), "'MAGIC' in 'MAGIC' is no algorithm of forward"));
  CHECK(contains(refused(ConvPass::forward, "MAGIC"), "IMPLICIT_PRECOMP_GEMM"));
  CHECK(contains(refused(ConvPass::forward, "ALGO_0"), "no algorithm of forward"));
  CHECK(contains(refused(ConvPass::backward_data, "ALGO_3"), "ALGO_0, ALGO_1, FFT"));
  CHECK(contains(refused(ConvPass::backward_filter, "gemm||ALGO_3"), "an empty name"));
  for (const char* name :
       {"engine:", "engine:x", "engine:-1", "engine:1,", "engine:1,k2", "engine:1,k2=", "engine:1,2=3",
        "engine:1,k-2=3", "engine:1 ", "engine:99999999999999999999", "winograd", "gemm ", " gemm"}) {
    CAPTURE(name);
    CHECK(contains(refused(ConvPass::forward, name), "is no algorithm of forward"));
  }
}

TEST_CASE("rules name a pass, a layer or both") {
  const ConvRule a = parse_conv_rule("fwd=IMPLICIT_PRECOMP_GEMM");
  CHECK(a.layer == "*");
  CHECK(a.pass == ConvPass::forward);
  CHECK(a.choices == "IMPLICIT_PRECOMP_GEMM");
  const ConvRule b = parse_conv_rule("layer1.0.conv1.bwd_filter=engine:65,k2=5,k13=1");
  CHECK(b.layer == "layer1.0.conv1");
  CHECK(b.pass == ConvPass::backward_filter);
  CHECK(b.choices == "engine:65,k2=5,k13=1");
  const ConvRule c = parse_conv_rule("*.bwd_data=WINOGRAD_NONFUSED|engine:67");
  CHECK(c.layer == "*");
  CHECK(c.pass == ConvPass::backward_data);
  const ConvRule d = parse_conv_rule("conv1=gemm");
  CHECK(d.layer == "conv1");
  CHECK_FALSE(d.pass.has_value());

  CHECK(contains(refusal_of_rule("gemm"), "names no algorithm"));
  CHECK(contains(refusal_of_rule("=gemm"), "names no algorithm"));
  CHECK(contains(refusal_of_rule("fwd="), "names no algorithm"));
  CHECK(contains(refusal_of_rule(""), "names no algorithm"));
  CHECK(contains(refusal_of_rule("fwd=MAGIC"), "'fwd=MAGIC': 'MAGIC' in 'MAGIC' is no algorithm of forward"));
  CHECK(contains(refusal_of_rule("conv1=MAGIC"), "'MAGIC'"));
  CHECK(contains(refusal_of_rule("conv1.bwd_data=ALGO_3"), "no algorithm of backward_data"));
  CHECK_NOTHROW(parse_conv_rule("conv1=ALGO_3"));  // the filter's pass has it
}

TEST_CASE("rules set the layers that they fit, later ones over earlier ones") {
  auto model = models::find("resnet18").make(3, 32, 10);
  nn::apply_conv_rules(*model, std::vector{parse_conv_rule("fwd=WINOGRAD"), parse_conv_rule("layer1.*.conv2=gemm"),
                                           parse_conv_rule("layer1.0.conv2.bwd_filter=ALGO_3"),
                                           parse_conv_rule("*downsample*=IMPLICIT_GEMM")});
  CHECK(conv_of(*model, "conv1").options().algorithms == ConvAlgorithms{.forward = "WINOGRAD"});
  CHECK(conv_of(*model, "layer1.0.conv2").options().algorithms == ConvAlgorithms{"gemm", "gemm", "ALGO_3"});
  CHECK(conv_of(*model, "layer1.1.conv2").options().algorithms == ConvAlgorithms{"gemm", "gemm", "gemm"});
  // A name that one pass alone has is for that pass.
  CHECK(conv_of(*model, "layer2.0.downsample.0").options().algorithms == ConvAlgorithms{.forward = "IMPLICIT_GEMM"});
  const std::string text = refusal([&] { nn::apply_conv_rules(*model, std::vector{parse_conv_rule("conv7=gemm")}); });
  CHECK(contains(text, "'conv7=gemm': the model has no convolution 'conv7'"));
  CHECK(contains(text, "layer4.1.conv2"));
}

TEST_CASE("the environment gives rules, and its numbers are cuDNN's") {
  CHECK(conv_rules_from_environment().empty());
  const Variable forward("CUDNN_CONV_ALGO_FWD", "1,0"), filter("CUDNN_CONV_ALGO_BWD_FILTER", "3");
  const Variable ours("CUTTLE_CONV_ALGO", "conv1=gemm;fwd=FFT|auto;");
  const std::vector<ConvRule> rules = conv_rules_from_environment();
  REQUIRE(rules.size() == 4);
  CHECK(rules[0].pass == ConvPass::forward);
  CHECK(rules[0].choices == "IMPLICIT_PRECOMP_GEMM|IMPLICIT_GEMM");
  CHECK(rules[1].pass == ConvPass::backward_filter);
  CHECK(rules[1].choices == "ALGO_3");
  CHECK(rules[2].layer == "conv1");
  CHECK(rules[3].choices == "FFT|auto");
  for (const char* wrong : {"8", "1,", "-1", "one", "1;0", "0x1", "99999999999999999999999"}) {
    CAPTURE(wrong);
    const Variable variable("CUDNN_CONV_ALGO_FWD", wrong);
    CHECK(contains(refusal([] { conv_rules_from_environment(); }), "CUDNN_CONV_ALGO_FWD="));
  }
  const Variable wrong("CUTTLE_CONV_ALGO", "conv1=MAGIC");
  const Variable good("CUDNN_CONV_ALGO_FWD", "1");
  CHECK(contains(refusal([] { conv_rules_from_environment(); }), "CUTTLE_CONV_ALGO: 'conv1=MAGIC'"));
}

TEST_CASE("a convolution tells what computes it, also after its layer is gone") {
  const Tensor x = Tensor::randn({1, 3, 8, 8}).requires_grad_();
  ConvAlgorithms used;
  Tensor y;
  {
    nn::Conv2d conv(3, 4, {.kernel = 3, .algorithms = {.forward = "im2col|auto"}});
    CHECK(conv.algorithms() == ConvAlgorithms{});
    y = conv(x);
    CHECK(conv.algorithms() == ConvAlgorithms{.forward = "im2col"});
    sum(y).backward();
    CHECK(conv.algorithms() == ConvAlgorithms{"im2col", "im2col", "im2col"});
    y = conv(x);
  }
  CHECK_NOTHROW(sum(y).backward());
  CHECK_THROWS_AS(nn::Conv2d(3, 4, {.algorithms = {.backward_data = "ALGO_7"}}), UsageError);
}
