#include <doctest/doctest.h>

#include <filesystem>

#include "cuttle/error.hpp"
#include "support/quadrants.hpp"
#include "train/run_folder.hpp"
#include "train/trainer.hpp"

// Batch norm cannot learn from one value a channel, which is what the deepest layers see of a single small image.

namespace {

using namespace cuttle;
using namespace cuttle::train;
using cuttle::test::quadrants;
using cuttle::test::TemporaryFolder;

struct Steps final : EventSink {
  std::vector<double> losses;
  std::int64_t epochs = 0;
  void stepped(const StepEvent& e) override { losses.push_back(e.loss); }
  void epoch_done(const EpochEvent&) override { ++epochs; }
};

TrainConfig config_of(const std::string& model, std::int64_t batch) {
  TrainConfig config;
  config.model = model;
  config.batch = batch;
  config.epochs = 2;
  config.device = "cpu";
  config.lr = 0.01;
  return config;
}

}  // namespace

TEST_CASE("an epoch whose last image would stand alone is trained to its end") {
  const data::ImageSet set = quadrants(5);
  for (const std::int64_t accumulate : {1, 2}) {
    TrainConfig config = config_of("resnet18", 4);
    config.accumulate = accumulate;
    config.epochs = 1;
    const TemporaryFolder folder;
    Steps seen;
    Trainer(config, set, set, {.out = folder / "run", .sinks = {&seen}, .stop_requested = {}}).run();
    CHECK(seen.epochs == 1);
    CHECK(seen.losses.size() == 1);
  }
}

TEST_CASE("a run whose last batch is one image larger goes on as if it had not stopped, at every step") {
  const data::ImageSet train_set = quadrants(25), test_set = quadrants(9, 7);  // batches of 8, 8 and 9
  for (const std::int64_t accumulate : {1, 2, 3}) {
    TrainConfig config = config_of("lenet", 8);
    config.accumulate = accumulate;
    const std::int64_t steps = 2 * (accumulate == 1 ? 3 : accumulate == 2 ? 2 : 1);
    const TemporaryFolder folder;
    Steps whole;
    Trainer(config, train_set, test_set, {.out = folder / "whole", .sinks = {&whole}, .stop_requested = {}}).run();
    CHECK(std::ssize(whole.losses) == steps);
    for (std::int64_t stop = 1; stop < steps; ++stop) {
      CAPTURE(accumulate);
      CAPTURE(stop);
      config.steps = stop;
      const std::string out = folder / std::to_string(stop);
      Steps parts;
      Trainer(config, train_set, test_set, {.out = out, .sinks = {&parts}, .stop_requested = {}}).run();
      RunState state = load_run_state(state_file_of(out));
      state.config.steps = 0;
      Trainer(state, train_set, test_set, {.out = out, .sinks = {&parts}, .stop_requested = {}, .continues = true})
          .run();
      CHECK(parts.losses == whole.losses);
    }
  }
}

TEST_CASE("a batch of one image is refused before anything is touched, where the model cannot learn from it") {
  const data::ImageSet small = data::synthetic(2, 1, 8, 8, 4), larger = data::synthetic(2, 1, 16, 16, 4);
  const TemporaryFolder folder;
  const std::string out = folder / "run";
  const auto train = [&](const std::string& model, const data::ImageSet& set, std::int64_t accumulate) {
    TrainConfig config = config_of(model, 1);
    config.accumulate = accumulate;
    config.epochs = 1;
    return Trainer(config, set, set, {.out = out, .sinks = {}, .stop_requested = {}}).run().step;
  };
  CHECK_THROWS_WITH_AS(train("resnet18", small, 2), doctest::Contains("--batch 1 is not possible for resnet18"),
                       UsageError);
  CHECK(!std::filesystem::exists(out));
  CHECK_THROWS_AS(train("resnet18_cifar", small, 1), UsageError);
  CHECK(train("resnet18_cifar", larger, 1) == 2);  // its last maps are 2x2
}
