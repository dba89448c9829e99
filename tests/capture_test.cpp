#include <doctest/doctest.h>

#include <memory>

#include "core/capture.hpp"
#include "cuttle/autograd.hpp"
#include "cuttle/error.hpp"
#include "cuttle/nn.hpp"
#include "cuttle/optim.hpp"
#include "cuttle/random.hpp"
#include "kernels.hpp"
#include "support/idle_kernels.hpp"
#include "support/quadrants.hpp"
#include "train/stepper.hpp"

/// Recorded steps, on a CPU that imitates recording: while work is recorded, the kernels that change what outlives a
/// step do nothing; to replay is to do the work again from the host's state at the time of recording.
namespace {

using namespace cuttle;
using namespace cuttle::train;
using cuttle::test::do_nothing;
using cuttle::test::quadrants;

int recordings = 0, replays = 0;
optim::Optimizer* optimizer = nullptr;  // whose count of steps is the host's, not recorded

class Imitation final : public CapturedWork {
 public:
  explicit Imitation(std::function<void()> work)
      : work_(std::move(work)), generator_(default_generator().state()), advance_(RandomAdvanceScope::current()) {
    Kernels& kernels = backend(DeviceKind::cpu).kernels;
    const Kernels real = kernels;
    do_nothing(kernels.sgd_step);
    do_nothing(kernels.gradient_factor);
    do_nothing(kernels.batch_norm_train);
    work_();
    kernels = real;
    ++recordings;
  }
  void replay() override {
    const PhiloxKey now = default_generator().state();
    const std::int64_t steps = optimizer->steps();
    const RandomAdvanceScope scope(advance_);
    default_generator().set_state(generator_);
    work_();
    default_generator().set_state(now);
    optimizer->set_steps(steps);
    ++replays;
  }

 private:
  std::function<void()> work_;
  PhiloxKey generator_;
  Tensor advance_;
};

/// Gives the CPU the imitation, or another `capture`, while it lives.
class CaptureScope {
 public:
  using Capture = decltype(Backend::capture);
  explicit CaptureScope(Capture capture) {
    recordings = replays = 0;
    backend(DeviceKind::cpu).capture = capture;
  }
  ~CaptureScope() { backend(DeviceKind::cpu).capture = nullptr; }
};

std::unique_ptr<CapturedWork> imitate(int, const std::function<void()>& work) {
  return std::make_unique<Imitation>(work);
}

struct Net final : nn::Module {
  nn::Conv2d conv{1, 4, {.kernel = 3, .stride = 2}};
  nn::BatchNorm2d bn{4};
  nn::Linear fc{4 * 3 * 3, 10};
  Net() {
    add("conv", conv);
    add("bn", bn);
    add("fc", fc);
  }
  Tensor forward(const Tensor& x) override { return fc(dropout(flatten(relu(bn(conv(x)))), 0.5, training())); }
};

struct Outcome {
  std::vector<std::vector<float>> state;
  std::vector<double> losses, norms;
  std::int64_t steps = 0;
  PhiloxKey generator;
  bool captured = false;
  std::string why_not;
};

/// Three epochs of `images` images in windows of `accumulate` batches of 8, with a learning rate that changes.
Outcome run_steps(std::int64_t images, std::int64_t accumulate, bool capture) {
  const data::ImageSet set = quadrants(images);
  manual_seed(7);
  Net net;
  optim::SGD sgd(net.parameters(), {.lr = 0.1, .momentum = 0.9});
  optimizer = &sgd;
  Stepper stepper(net, sgd, {.clip_grad_norm = 0.5, .capture = capture, .most_batches = accumulate});
  const data::Loader loader(set, {.batch = 8, .shuffle = true});
  Outcome outcome;
  const auto take = [&](bool wait) {
    while (const auto result = stepper.next(wait)) {
      outcome.losses.push_back(result->loss);
      outcome.norms.push_back(result->grad_norm);
    }
  };
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    for (std::int64_t first = 0; first < loader.batches(); first += accumulate) {
      const std::int64_t last = std::min(first + accumulate, loader.batches());
      stepper.step(
          {.batches = last - first,
           .images = (last == loader.batches() ? images : last * 8) - first * 8,
           .load = [&](std::int64_t b, const data::Batch& into) { return loader.load(epoch, first + b, into); }},
          0.01 * static_cast<double>(1 + (first + epoch) % 3));
      if (first % 4 == 0) take(false);
    }
  }
  take(true);
  for (const nn::NamedTensor& t : net.state()) outcome.state.push_back(t.tensor.to_vector<float>());
  outcome.steps = sgd.steps();
  outcome.generator = default_generator().state();
  outcome.captured = stepper.captured();
  outcome.why_not = stepper.why_not_captured();
  return outcome;
}

void check_same(const Outcome& a, const Outcome& b) {
  CHECK(a.losses == b.losses);
  CHECK(a.norms == b.norms);
  CHECK(a.state == b.state);
  CHECK(a.steps == b.steps);
  CHECK(a.generator.offset == b.generator.offset);
}

}  // namespace

TEST_CASE("replayed steps give the bits of steps run op by op: new batches, rates, masks and a ragged last batch") {
  const Outcome plain = run_steps(45, 1, false);
  REQUIRE(plain.losses.size() == 18);
  const CaptureScope scope(imitate);
  const Outcome recorded = run_steps(45, 1, true);
  CHECK(recorded.captured);
  CHECK(recordings == 1);
  CHECK(replays == 12);  // 15 full windows, 3 of which came before the recording
  check_same(recorded, plain);
}

TEST_CASE("a last batch that one image more has joined neither replaces nor delays the recorded step") {
  for (const std::int64_t images : {41, 17}) {  // five batches an epoch, and two: the last one of 9
    const Outcome plain = run_steps(images, 1, false);
    const CaptureScope scope(imitate);
    const Outcome recorded = run_steps(images, 1, true);
    CHECK(recordings == (images == 41 ? 1 : 0));
    CHECK(replays == (images == 41 ? 9 : 0));  // 12 full windows, 3 of which came before the recording
    check_same(recorded, plain);
  }
}

TEST_CASE("windows of several batches are recorded whole") {
  const Outcome plain = run_steps(85, 2, false);
  const CaptureScope scope(imitate);
  const Outcome recorded = run_steps(85, 2, true);
  CHECK(recordings == 1);
  CHECK(replays == 12);  // of each epoch's 6 windows the last holds 5 images
  check_same(recorded, plain);
}

TEST_CASE("without capture, or where it fails, steps run op by op to the same result") {
  const Outcome plain = run_steps(45, 1, true);
  CHECK(!plain.captured);
  CHECK(plain.why_not.empty());
  const CaptureScope scope([](int, const std::function<void()>& work) -> std::unique_ptr<CapturedWork> {
    const Imitation half(work);
    throw DeviceError("the device was waited for");
  });
  const Outcome failed = run_steps(45, 1, true);
  CHECK(!failed.captured);
  CHECK(failed.why_not == "the device was waited for");
  CHECK(recordings == 1);
  check_same(failed, plain);
}

TEST_CASE("weights changed from outside are no longer those of the recorded step: it is recorded anew") {
  const CaptureScope scope(imitate);
  const data::ImageSet set = quadrants(8);
  const data::Loader loader(set, {.batch = 8});
  Net net;
  optim::SGD sgd(net.parameters(), {.lr = 0.1});
  optimizer = &sgd;
  Stepper stepper(net, sgd, {});
  const Window window{.batches = 1, .images = 8, .load = [&](std::int64_t, const data::Batch& into) {
                        return loader.load(0, 0, into);
                      }};
  for (int i = 0; i < 5; ++i) stepper.step(window, 0.1);
  CHECK(stepper.captured());
  {
    const NoGrad no_grad;
    net.fc.weight.fill_(0);
  }
  stepper.step(window, 0.1);
  CHECK(!stepper.captured());
  for (int i = 0; i < 4; ++i) stepper.step(window, 0.1);
  CHECK(stepper.captured());
  CHECK(recordings == 2);
  while (stepper.next(true)) continue;
}

TEST_CASE("a window whose batches are not what the recorded step reads is an error, not a step on an old batch") {
  const CaptureScope scope(imitate);
  const data::ImageSet set = quadrants(8);
  const data::Loader loader(set, {.batch = 8});
  Net net;
  optim::SGD sgd(net.parameters(), {.lr = 0.1});
  optimizer = &sgd;
  Stepper stepper(net, sgd, {});
  const Window window{
      .batches = 1, .images = 8, .load = [&](std::int64_t, const data::Batch&) { return loader.load(0, 0); }};
  for (int i = 0; i < 4; ++i) stepper.step(window, 0.1);
  REQUIRE(stepper.captured());
  CHECK_THROWS_WITH_AS(stepper.step(window, 0.1), doctest::Contains("other tensors"), Error);
}

TEST_CASE("a stepper that is gone leaves no memory in its private pool") {
  const CaptureScope scope(imitate);
  run_steps(45, 1, true);
  empty_cache();
  for (const memory::SegmentInfo& segment : memory::allocator(kCpu).snapshot()) {
    for (const memory::BlockInfo& block : segment.blocks) CHECK(block.pool == 0);
  }
}
