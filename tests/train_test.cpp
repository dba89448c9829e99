#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cuttle/autograd.hpp"
#include "cuttle/error.hpp"
#include "cuttle/memory.hpp"
#include "cuttle/models.hpp"
#include "support/quadrants.hpp"
#include "train/divergence.hpp"
#include "train/json_sink.hpp"
#include "train/run_folder.hpp"
#include "train/trainer.hpp"

namespace {

using namespace cuttle;
using namespace cuttle::train;
using cuttle::test::quadrants;
using cuttle::test::TemporaryFolder;

struct Recorder final : EventSink {
  std::vector<StepEvent> steps;
  std::vector<EpochEvent> epochs;
  void stepped(const StepEvent& e) override { steps.push_back(e); }
  void epoch_done(const EpochEvent& e) override { epochs.push_back(e); }
};

TrainConfig small_config() {
  TrainConfig config;
  config.epochs = 3;
  config.batch = 8;
  config.device = "cpu";
  config.lr = 0.02;
  return config;
}

std::vector<float> flat_parameters(const nn::Module& module) {
  std::vector<float> all;
  for (const Tensor& p : module.parameters()) {
    for (const float v : p.to_vector<float>()) all.push_back(v);
  }
  return all;
}

/// What a run shows: its events and the weights it ends with.
struct Outcome {
  Recorder seen;
  EndEvent end;
  std::vector<float> weights;
};

struct Sets {
  data::ImageSet train, test;
};

Outcome begin(const TrainConfig& config, const Sets& sets, const std::string& out) {
  Outcome outcome;
  Trainer trainer(config, sets.train, sets.test, {.out = out, .sinks = {&outcome.seen}, .stop_requested = {}});
  outcome.end = trainer.run();
  outcome.weights = flat_parameters(trainer.module());
  return outcome;
}

Outcome go_on(const std::string& out, const Sets& sets) {
  Outcome outcome;
  RunState state = load_run_state(state_file_of(out));
  state.config = resumed_config(state.config, TrainConfig(), {});
  Trainer trainer(state, sets.train, sets.test,
                  {.out = out, .sinks = {&outcome.seen}, .stop_requested = {}, .continues = true});
  outcome.end = trainer.run();
  outcome.weights = flat_parameters(trainer.module());
  return outcome;
}

/// Whether the two parts show the same steps and epochs as the whole, bit by bit.
void check_same_run(const Outcome& whole, const Outcome& first, const Outcome& second) {
  std::vector<StepEvent> steps = first.seen.steps;
  steps.insert(steps.end(), second.seen.steps.begin(), second.seen.steps.end());
  REQUIRE(steps.size() == whole.seen.steps.size());
  for (std::size_t i = 0; i < steps.size(); ++i) {
    CAPTURE(i);
    CHECK(steps[i].step == whole.seen.steps[i].step);
    CHECK(steps[i].epoch == whole.seen.steps[i].epoch);
    CHECK(steps[i].loss == whole.seen.steps[i].loss);
    CHECK(steps[i].lr == whole.seen.steps[i].lr);
    CHECK(steps[i].grad_norm == whole.seen.steps[i].grad_norm);
  }
  REQUIRE(first.seen.epochs.size() + second.seen.epochs.size() == whole.seen.epochs.size());
  for (std::size_t i = 0; i < second.seen.epochs.size(); ++i) {
    const EpochEvent& a = whole.seen.epochs[first.seen.epochs.size() + i];
    const EpochEvent& b = second.seen.epochs[i];
    CHECK(b.epoch == a.epoch);
    CHECK(b.train_loss == a.train_loss);
    CHECK(b.train_accuracy == a.train_accuracy);
    CHECK(b.test.loss == a.test.loss);
  }
  CHECK(second.weights == whole.weights);
  CHECK(second.end.best_test_accuracy == whole.end.best_test_accuracy);
}

/// Passes the sums over its input's pixels on, times 0..classes-1: logits that can be worked out by hand.
class Scripted final : public nn::Module {
 public:
  explicit Scripted(std::vector<std::vector<float>> logits) : logits_(std::move(logits)) {}
  Tensor forward(const Tensor& x) override {
    std::vector<float> values;
    for (std::int64_t i = 0; i < x.size(0); ++i) {
      const auto& row = logits_.at(next_++);
      values.insert(values.end(), row.begin(), row.end());
    }
    return Tensor::from(values, {x.size(0), static_cast<std::int64_t>(logits_[0].size())});
  }

 private:
  std::vector<std::vector<float>> logits_;
  std::size_t next_ = 0;
};

}  // namespace

TEST_CASE("LeNet learns the quadrants within three epochs") {
  const TemporaryFolder folder;
  const Sets sets{quadrants(200), quadrants(80, 9)};
  const Outcome outcome = begin(small_config(), sets, folder / "run");
  CHECK(outcome.end.ending == Ending::finished);
  CHECK(outcome.end.test_accuracy.value() > 0.95);
  CHECK(outcome.seen.steps.front().loss > 2 * outcome.seen.steps.back().loss);
  REQUIRE(outcome.seen.epochs.size() == 3);
  CHECK(outcome.seen.epochs[2].test.images == 80);
  CHECK(outcome.seen.epochs[2].peak_allocated_bytes > 0);
}

TEST_CASE("a run stopped within an epoch and resumed is bit-equal to the uninterrupted one") {
  const Sets sets{quadrants(90), quadrants(20, 9)};
  for (const std::int64_t accumulate : {1, 3}) {
    for (const OptimizerKind optimizer : {OptimizerKind::sgd, OptimizerKind::adamw}) {
      CAPTURE(accumulate);
      CAPTURE(name_of(optimizer));
      const TemporaryFolder folder;
      TrainConfig config = small_config();
      config.accumulate = accumulate;
      config.optimizer = optimizer;
      config.clip_grad_norm = 1;
      config.warmup = 2;
      const Outcome whole = begin(config, sets, folder / "whole");
      config.steps = accumulate == 1 ? 17 : 6;  // 12 and 4 steps an epoch: within the second
      const Outcome first = begin(config, sets, folder / "parts");
      CHECK(first.end.ending == Ending::step_limit);
      check_same_run(whole, first, go_on(folder / "parts", sets));
    }
  }
}

TEST_CASE("125 steps an epoch, resumed at step 200: the epoch counter and the losses go on") {
  const TemporaryFolder folder;
  const Sets sets{quadrants(250), quadrants(20, 9)};
  TrainConfig config = small_config();
  config.batch = 2;
  config.epochs = 2;
  const Outcome whole = begin(config, sets, folder / "whole");
  config.steps = 200;
  const Outcome first = begin(config, sets, folder / "parts");
  const Outcome second = go_on(folder / "parts", sets);
  CHECK(second.seen.steps.front().epoch == 2);
  CHECK(second.seen.steps.front().step_in_epoch == 76);
  CHECK(second.seen.epochs.front().epoch == 2);
  check_same_run(whole, first, second);
}

TEST_CASE("a request to stop finishes the step, saves, and the run can go on from there") {
  const TemporaryFolder folder;
  const Sets sets{quadrants(64), quadrants(20, 9)};
  const Outcome whole = begin(small_config(), sets, folder / "whole");
  Outcome first;
  {
    Trainer trainer(small_config(), sets.train, sets.test,
                    {.out = folder / "parts", .sinks = {&first.seen}, .stop_requested = [&] {
                       return first.seen.steps.size() >= 11;
                     }});
    first.end = trainer.run();
  }
  CHECK(first.end.ending == Ending::interrupted);
  CHECK(first.end.step == 11);
  check_same_run(whole, first, go_on(folder / "parts", sets));
}

TEST_CASE("a run stopped while it evaluates repeats the evaluation when it goes on") {
  const TemporaryFolder folder;
  const Sets sets{quadrants(64), quadrants(20, 9)};
  const Outcome whole = begin(small_config(), sets, folder / "whole");
  Outcome first;
  {
    // Asked before each of the 8 steps and then by the evaluation.
    int asked = 0;
    Trainer trainer(small_config(), sets.train, sets.test,
                    {.out = folder / "parts", .sinks = {&first.seen}, .stop_requested = [&] { return ++asked > 8; }});
    first.end = trainer.run();
  }
  CHECK(first.end.ending == Ending::interrupted);
  CHECK(first.seen.steps.size() == 8);
  CHECK(first.seen.epochs.empty());
  check_same_run(whole, first, go_on(folder / "parts", sets));
}

TEST_CASE("an epoch is saved before it is told of: a report that cannot be written does not cost it") {
  struct Failing final : EventSink {
    void epoch_saved(const EpochEvent&) override { throw IoError("no room for the report"); }
  } failing;
  const TemporaryFolder folder;
  const Sets sets{quadrants(16), quadrants(8, 9)};
  Trainer trainer(small_config(), sets.train, sets.test,
                  {.out = folder / "run", .sinks = {&failing}, .stop_requested = {}});
  CHECK_THROWS_AS(trainer.run(), IoError);
  CHECK(load_run_state(state_file_of(folder / "run")).progress.epoch == 1);
  CHECK(std::filesystem::exists(model_file_of(folder / "run")));
}

TEST_CASE("the last, shorter window of an epoch is a step of its own") {
  const TemporaryFolder folder;
  const Sets sets{quadrants(21), quadrants(8, 9)};
  TrainConfig config = small_config();
  config.accumulate = 2;
  config.epochs = 1;
  const Outcome outcome = begin(config, sets, folder / "run");
  CHECK(outcome.seen.steps.size() == 2);  // 8 + 8 images, then 5
  REQUIRE(outcome.seen.epochs.size() == 1);
  CHECK(outcome.seen.epochs[0].train_loss ==
        doctest::Approx((16 * outcome.seen.steps[0].loss + 5 * outcome.seen.steps[1].loss) / 21));
}

TEST_CASE("a loss that is not finite stops the run before the update and leaves the last saved state") {
  const TemporaryFolder folder;
  const Sets sets{quadrants(64), quadrants(20, 9)};
  TrainConfig config = small_config();
  config.lr = 1e30;
  config.schedule = ScheduleKind::constant;
  Recorder seen;
  Trainer trainer(config, sets.train, sets.test, {.out = folder / "run", .sinks = {&seen}, .stop_requested = {}});
  std::string cause, hint;
  try {
    trainer.run();
  } catch (const DivergedError& error) {
    cause = error.cause();
    hint = error.hint();
  }
  REQUIRE(!cause.empty());
  const std::string step = "at step " + std::to_string(seen.steps.size() + 1) + " of epoch 1";
  CHECK(cause.find(step) != std::string::npos);
  CHECK(cause.find("conv") != std::string::npos);
  CHECK(hint.find(folder / "run") != std::string::npos);
  const RunState state = load_run_state(state_file_of(folder / "run"));
  CHECK(state.progress.step == 0);
  for (const nn::NamedTensor& t : state.model) CHECK(non_finite_count(t.tensor).item<std::int64_t>() == 0);
}

TEST_CASE("weights that the last step of a run spoils are not saved") {
  const Sets sets{quadrants(8), quadrants(8, 9)};
  for (const std::int64_t steps : {0, 1}) {  // ends by its epochs, or at the step limit
    CAPTURE(steps);
    const TemporaryFolder folder;
    TrainConfig config = small_config();
    config.lr = 1e38;
    config.schedule = ScheduleKind::constant;
    config.epochs = steps == 0 ? 1 : 3;  // of one step each
    config.steps = steps;
    CHECK_THROWS_AS(begin(config, sets, folder / "run"), DivergedError);
    CHECK(!std::filesystem::exists(model_file_of(folder / "run")));
    CHECK(load_run_state(state_file_of(folder / "run")).progress.step == 0);
  }
}

TEST_CASE("a run is not started from weights that are not finite") {
  const TemporaryFolder folder;
  const Sets sets{quadrants(8), quadrants(8, 9)};
  const auto module = make_module(spec_for("lenet", sets.train));
  {
    const NoGrad no_grad;
    Tensor bias = module->parameters().back();
    bias.fill_(std::numeric_limits<double>::infinity());
  }
  TrainConfig config = small_config();
  config.weights = folder / "bad.safetensors";
  save_model(config.weights, *module, spec_for("lenet", sets.train));
  CHECK_THROWS_WITH_AS(begin(config, sets, folder / "run"), doctest::Contains("'fc2.bias' holds 4"), CheckpointError);
}

TEST_CASE("the first place of a NaN is named: parameter, image or layer") {
  data::ImageSet set = quadrants(8);
  const auto where = [&](const std::string& parameter, double value, float stddev) {
    set.stddev = {stddev};
    const auto module = make_module(spec_for("lenet", set));
    const NoGrad no_grad;
    for (const nn::NamedTensor& p : module->named_parameters()) {
      Tensor tensor = p.tensor;
      if (p.name == parameter) tensor.fill_(value);
    }
    const data::Loader loader(set, {.batch = 8});
    return first_non_finite(*module, {.batches = 1, .images = 8, .load = [&](std::int64_t b, const data::Batch& into) {
                                        return loader.load(0, b, into);
                                      }});
  };
  CHECK(where("fc1.bias", std::numeric_limits<double>::quiet_NaN(), 1).find("'fc1.bias' already holds 128") !=
        std::string::npos);
  CHECK(where("", 0, 0).find("images") != std::string::npos);
  const std::string layer = where("fc1.weight", 3e38, 0.01F);
  CHECK(layer.find("layer 'fc1' (Linear)") != std::string::npos);
}

TEST_CASE("an output folder that cannot be made stops the run before its first step") {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "in the way";
  const Sets sets{quadrants(16), quadrants(8, 9)};
  Recorder seen;
  Trainer trainer(small_config(), sets.train, sets.test,
                  {.out = (folder / "file") + "/run", .sinks = {&seen}, .stop_requested = {}});
  CHECK_THROWS_AS(trainer.run(), IoError);
  CHECK(seen.steps.empty());
}

TEST_CASE("two runs do not share a folder") {
  const TemporaryFolder folder;
  const Sets sets{quadrants(16), quadrants(8, 9)};
  {
    const RunLock other(folder / "run");
    CHECK_THROWS_WITH_AS(begin(small_config(), sets, folder / "run"), doctest::Contains("another run"), UsageError);
  }
  CHECK_NOTHROW(begin(small_config(), sets, folder / "run"));
}

TEST_CASE("test images unlike the training images are refused before the run") {
  const TemporaryFolder folder;
  const data::ImageSet train = quadrants(16);
  data::ImageSet larger = data::synthetic(8, 1, 9, 9, 4), coloured = data::synthetic(8, 3, 8, 8, 4);
  larger.classes = coloured.classes = train.classes;
  data::ImageSet other_classes = quadrants(8);
  other_classes.classes.pop_back();
  for (const data::ImageSet& test : {larger, coloured, other_classes})
    CHECK_THROWS_AS(begin(small_config(), {train, test}, folder / "run"), DataError);
  CHECK(!std::filesystem::exists(folder / "run"));
}

TEST_CASE("a run out of memory says so and the saved state survives") {
  const TemporaryFolder folder;
  const Sets sets{quadrants(64), quadrants(8, 9)};
  begin(small_config(), sets, folder / "run");
  const data::ImageSet many = quadrants(1024);
  TrainConfig config = small_config();
  config.batch = 1024;  // the first layer alone gives 8 MiB
  config.memory_limit = memory::allocator(kCpu).stats().allocated_bytes + (std::uint64_t{6} << 20);
  CHECK_THROWS_AS(begin(config, {many, sets.test}, folder / "run"), OutOfMemoryError);
  memory::allocator(kCpu).set_limit(std::nullopt);
  CHECK_NOTHROW(load_run_state(state_file_of(folder / "run")));
}

TEST_CASE("impossible settings are named") {
  const auto cause_of = [](auto change) -> std::string {
    TrainConfig config = small_config();
    change(config);
    try {
      validate(config);
      resolve_for(config, 100);
    } catch (const UsageError& error) {
      return error.cause();
    }
    return "accepted";
  };
  const auto names = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  CHECK(names(cause_of([](TrainConfig& c) { c.batch = 0; }), "--batch 0"));
  CHECK(names(cause_of([](TrainConfig& c) { c.batch = 101; }), "--batch 101"));
  CHECK(names(cause_of([](TrainConfig& c) { c.epochs = 0; }), "--epochs 0"));
  CHECK(names(cause_of([](TrainConfig& c) { c.accumulate = 0; }), "--accumulate 0"));
  CHECK(names(cause_of([](TrainConfig& c) { c.lr = -1; }), "--lr -1"));
  CHECK(names(cause_of([](TrainConfig& c) { c.lr = std::nan(""); }), "--lr nan"));
  CHECK(names(cause_of([](TrainConfig& c) { c.momentum = 1; }), "--momentum 1"));
  CHECK(names(cause_of([](TrainConfig& c) { c.label_smoothing = 1.5; }), "--label-smoothing 1.5"));
  CHECK(names(cause_of([](TrainConfig& c) { c.warmup = 39; }), "--warmup 39"));
  CHECK(names(cause_of([](TrainConfig& c) { c.threads = -1; }), "--threads -1"));
  CHECK(cause_of([](TrainConfig& c) { c.warmup = 38; }) == "accepted");
  CHECK_THROWS_WITH_AS(check_precision(parse_precision("fp16"), kCpu), doctest::Contains("GPU"), UsageError);
  CHECK_NOTHROW(check_precision(Precision::tf32, kCpu));
  CHECK_THROWS_AS(parse_precision("fp8"), UsageError);
  CHECK_THROWS_AS(parse_schedule("linear"), UsageError);
}

TEST_CASE("the largest settings give a run of sensible length, larger ones are refused") {
  TrainConfig config = small_config();
  config.accumulate = std::int64_t{1} << 31;
  config.epochs = 1'000'000;
  validate(config);
  resolve_for(config, 64);
  CHECK(steps_per_epoch(config, 64) == 1);

  config.epochs.reset();
  config.steps = 1'000'000'000'000;
  validate(config);
  CHECK_THROWS_WITH_AS(resolve_for(config, 64), doctest::Contains("--steps 1000000000000"), UsageError);

  static constexpr std::int64_t kTooMuch = std::numeric_limits<std::int64_t>::max();
  const auto refuses = [](auto change) {
    TrainConfig c = small_config();
    change(c);
    CHECK_THROWS_AS(validate(c), UsageError);
  };
  refuses([](TrainConfig& c) { c.epochs = kTooMuch; });
  refuses([](TrainConfig& c) { c.steps = kTooMuch; });
  refuses([](TrainConfig& c) { c.batch = kTooMuch; });
  refuses([](TrainConfig& c) { c.accumulate = kTooMuch; });
  refuses([](TrainConfig& c) { c.size = kTooMuch; });
  refuses([](TrainConfig& c) { c.warmup = kTooMuch; });
}

TEST_CASE("the time left is that of the images left, also where a step takes a part of its window") {
  const TemporaryFolder folder;
  const Sets sets{quadrants(20), quadrants(8, 9)};
  TrainConfig config = small_config();
  config.accumulate = std::int64_t{1} << 31;  // one step of 20 images an epoch
  const Outcome outcome = begin(config, sets, folder / "run");
  REQUIRE(outcome.seen.steps.size() == 3);
  const StepEvent& first = outcome.seen.steps.front();
  CHECK(first.seconds_left * first.images_per_s == doctest::Approx(40));
}

TEST_CASE("every setting survives being saved") {
  TrainConfig c;
  c.model = "resnet18";
  c.data = "somewhere";
  c.size = 12;
  c.weights = "start.safetensors";
  c.epochs = 7;
  c.steps = 3;
  c.batch = 5;
  c.accumulate = 6;
  c.optimizer = OptimizerKind::adamw;
  c.lr = 0.125;
  c.momentum = 0.5;
  c.weight_decay = 0.25;
  c.label_smoothing = 0.0625;
  c.schedule = ScheduleKind::step;
  c.warmup = 8;
  c.clip_grad_norm = 1.5;
  c.device = "cpu";
  c.precision = Precision::tf32;
  c.augment = Augment::crop_flip;
  c.conv = ConvPolicy::gemm;
  c.algo = {"fwd=gemm", "conv1=auto"};
  c.measure_limit = 4;
  c.no_cudnn = c.no_reduced_precision = true;
  c.tf32_conv = true;
  c.tf32_matmul = false;
  c.deterministic = true;
  c.workspace_limit = 1 << 19;
  c.memory_limit = 1 << 20;
  c.threads = 2;
  c.seed = 9;
  const nlohmann::ordered_json defaults = to_json(TrainConfig()), saved = to_json(c);
  CHECK(saved.size() == 31);
  for (const auto& item : saved.items()) {
    const std::string& key = item.key();
    CAPTURE(key);
    CHECK((!defaults.contains(key) || defaults.at(key) != item.value()));
  }
  CHECK(to_json(config_from_json(saved)) == saved);
}

TEST_CASE("a resumed run takes its settings from the state and refuses others by name") {
  TrainConfig started = small_config();
  resolve_for(started, 100);
  started.steps = 20;
  TrainConfig wanted;
  wanted.lr = 0.5;
  wanted.batch = 16;
  wanted.epochs = 9;
  CHECK(resumed_config(started, wanted, {"epochs"}).epochs == 9);
  CHECK(resumed_config(started, wanted, {}).batch == 8);
  CHECK(resumed_config(started, wanted, {}).steps == 0);
  try {
    resumed_config(started, wanted, {"lr", "batch", "epochs"});
    FAIL("other settings were taken");
  } catch (const UsageError& error) {
    CHECK(error.cause().find("--lr was 0.02 and is now 0.5") != std::string::npos);
    CHECK(error.cause().find("--batch was 8 and is now 16") != std::string::npos);
    CHECK(error.cause().find("epochs") == std::string::npos);
  }
  wanted.model = "resnet18";
  CHECK_THROWS_AS(resumed_config(started, wanted, {"model"}), CheckpointError);
}

TEST_CASE("a run is not resumed with other data") {
  const TemporaryFolder folder;
  const Sets sets{quadrants(64), quadrants(20, 9)};
  TrainConfig config = small_config();
  config.steps = 3;
  begin(config, sets, folder / "run");
  CHECK_THROWS_AS(go_on(folder / "run", {quadrants(65), quadrants(20, 9)}), CheckpointError);
}

TEST_CASE("metrics hold each step once, though a later part of the file was never saved") {
  const TemporaryFolder folder;
  const std::string file = folder / "metrics.jsonl";
  const auto write = [&](MetricsFile& metrics, std::int64_t from, std::int64_t to) {
    for (std::int64_t step = from; step <= to; ++step)
      metrics.stepped({.epoch = 1, .step = step, .loss = 0.1 * static_cast<double>(step)});
  };
  {
    MetricsFile metrics(file);
    metrics.started({});
    write(metrics, 1, 6);
  }
  std::ofstream(file, std::ios::app) << R"({"event":"step","st)";  // torn by a kill
  MetricsFile metrics(file, file);
  StartEvent start;
  start.resumed_at_step = 4;
  metrics.started(start);
  write(metrics, 5, 7);
  metrics.flush();
  std::ifstream in(file);
  std::int64_t expected = 0;
  for (std::string line; std::getline(in, line);) {
    ++expected;
    CHECK(line.find("\"step\":" + std::to_string(expected) + ",") != std::string::npos);
  }
  CHECK(expected == 7);
}

TEST_CASE("an epoch whose state was never saved stands in the metrics once") {
  const TemporaryFolder folder;
  const std::string file = folder / "metrics.jsonl";
  {
    MetricsFile metrics(file);
    metrics.started({});
    for (std::int64_t epoch = 1; epoch <= 2; ++epoch) {
      metrics.stepped({.epoch = epoch, .step = epoch});
      metrics.epoch_done({.epoch = epoch, .step = epoch, .test = {}});
    }
  }
  MetricsFile metrics(file, file);
  StartEvent start;
  start.resumed_at_step = 2;
  start.resumed_at_epoch = 1;
  metrics.started(start);
  metrics.epoch_done({.epoch = 2, .step = 2, .test = {}});
  std::ifstream in(file);
  std::string seen;
  for (std::string line; std::getline(in, line);) {
    seen += line.starts_with(R"({"event":"epoch","epoch":)") ? line.substr(25, 1) : "s";
  }
  CHECK(seen == "s1s2");
}

TEST_CASE("an evaluation counts, and keeps the most confident mistakes first") {
  data::ImageSet set = quadrants(5);
  set.labels = {0, 1, 2, 3, 0};
  Scripted module({{4, 0, 0, 0}, {0, 0, 1, 0}, {0, 0, 2, 0}, {3, 0, 0, 0}, {0, 0, 0, 9}});
  module.train();
  const Evaluation e = evaluate(module, set, 2, kCpu).value();
  CHECK(module.training());
  CHECK(e.images == 5);
  CHECK(e.correct == 2);
  CHECK(e.count(0, 0) == 1);
  CHECK(e.count(1, 2) == 1);
  CHECK(e.count(3, 0) == 1);
  CHECK(e.count(0, 3) == 1);
  CHECK(e.labelled(0) == 2);
  CHECK(e.predicted_as(2) == 2);
  REQUIRE(e.worst.size() == 3);
  CHECK(e.worst[0].index == 4);
  CHECK(e.worst[1].index == 3);
  CHECK(e.worst[2].index == 1);
  CHECK(e.worst[2].probability == doctest::Approx(std::exp(1.0) / (std::exp(1.0) + 3)));
  const auto lse = [](double top) { return std::log(std::exp(top) + 3); };
  CHECK(e.loss == doctest::Approx((lse(4) - 4 + lse(1) + lse(2) - 2 + lse(3) + lse(9)) / 5));
}

TEST_CASE("a model whose outputs do not match the classes is not evaluated") {
  const data::ImageSet set = quadrants(4);
  Scripted module({{1, 0}, {1, 0}, {1, 0}, {1, 0}});
  CHECK_THROWS_AS(evaluate(module, set, 4, kCpu), ShapeError);
}
