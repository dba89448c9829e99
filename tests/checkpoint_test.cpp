#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "cuttle/error.hpp"
#include "cuttle/memory.hpp"
#include "cuttle/random.hpp"
#include "cuttle/serialization.hpp"
#include "support/quadrants.hpp"
#include "train/run_folder.hpp"
#include "train/run_state.hpp"

namespace {

using namespace cuttle;
using namespace cuttle::train;
using cuttle::test::quadrants;
using cuttle::test::TemporaryFolder;

RunState example_state() {
  RunState state;
  state.config.data = "somewhere";
  state.config.batch = 8;
  state.config.seed = 0xfedcba9876543210ULL;
  state.config.lr = 0.1;
  state.config.memory_limit = 1ULL << 40;
  resolve_for(state.config, 64);
  state.spec = spec_for("lenet", quadrants(1));
  state.train_images = 64;
  state.progress = {.epoch = 1,
                    .step = 11,
                    .step_in_epoch = 3,
                    .loss_sum = 1.0 / 3,
                    .correct = 17,
                    .images = 24,
                    .best_test_accuracy = 0.1 + 0.2,
                    .test_accuracy = 0.25,
                    .test_loss = 1e-300};
  state.ops_generator = {~0ULL, kStreamOps, (1ULL << 60) + 1};
  state.init_generator = {7, kStreamInit, 123};
  state.model = {{"a.weight", Tensor::from<float>({1, 2, 3, 4}, {2, 2})}};
  state.optimizer = {{"step", Tensor::from<std::int64_t>({11}, {})}};
  return state;
}

std::string cause_of(const std::string& file) {
  try {
    load_run_state(file);
  } catch (const CheckpointError& error) {
    return error.cause();
  }
  return {};
}

}  // namespace

TEST_CASE("the state of a run comes back exactly") {
  const TemporaryFolder folder;
  const std::string file = folder / "state.safetensors";
  const RunState saved = example_state();
  save_run_state(file, saved);
  const RunState loaded = load_run_state(file);
  CHECK(loaded.config.seed == saved.config.seed);
  CHECK(loaded.config.lr == saved.config.lr);
  CHECK(loaded.config.epochs == saved.config.epochs);
  CHECK(loaded.config.memory_limit == saved.config.memory_limit);
  CHECK(loaded.spec.classes == saved.spec.classes);
  CHECK(loaded.spec.mean == saved.spec.mean);
  CHECK(loaded.train_images == 64);
  CHECK(loaded.progress.epoch == 1);
  CHECK(loaded.progress.step_in_epoch == 3);
  CHECK(loaded.progress.loss_sum == saved.progress.loss_sum);
  CHECK(loaded.progress.best_test_accuracy == saved.progress.best_test_accuracy);
  CHECK(loaded.progress.test_loss == saved.progress.test_loss);
  CHECK(loaded.ops_generator.seed == saved.ops_generator.seed);
  CHECK(loaded.ops_generator.offset == saved.ops_generator.offset);
  CHECK(loaded.init_generator.stream == kStreamInit);
  REQUIRE(loaded.model.size() == 1);
  CHECK(loaded.model[0].name == "a.weight");
  CHECK(loaded.model[0].tensor.to_vector<float>() == std::vector<float>{1, 2, 3, 4});
  REQUIRE(loaded.optimizer.size() == 1);
  CHECK(loaded.optimizer[0].tensor.item<std::int64_t>() == 11);
}

TEST_CASE("a file that is not the state of a run is refused by name") {
  const TemporaryFolder folder;
  const std::string file = folder / "state.safetensors";
  CHECK(cause_of(file).find(file) != std::string::npos);  // missing

  save_safetensors(file, {{"weight", Tensor::ones({2})}});
  CHECK(cause_of(file).find("is not the state of a run") != std::string::npos);

  save_run_state(file, example_state());
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 1);
  CHECK(cause_of(file).find(file) != std::string::npos);
}

TEST_CASE("a state whose progress contradicts itself is refused") {
  const TemporaryFolder folder;
  const std::string file = folder / "state.safetensors";
  const auto refused = [&](auto change) {
    RunState state = example_state();
    change(state);
    save_run_state(file, state);
    return cause_of(file).find("progress") != std::string::npos;
  };
  CHECK(refused([](RunState& s) { s.progress.step = 12; }));
  CHECK(refused([](RunState& s) { s.progress.step_in_epoch = 9; }));
  CHECK(refused([](RunState& s) { s.progress.epoch = -1; }));
  CHECK(refused([](RunState& s) { s.train_images = 0; }));
  CHECK(refused([](RunState& s) { s.train_images = std::numeric_limits<std::int64_t>::max(); }));
  CHECK(refused([](RunState& s) { s.progress.step = std::numeric_limits<std::int64_t>::min(); }));
  CHECK(refused([](RunState& s) { s.progress.images = 25; }));
  CHECK(refused([](RunState& s) { s.progress.correct = 25; }));
  CHECK(refused([](RunState& s) { s.progress.test_accuracy = 1.5; }));
}

TEST_CASE("a state whose settings and model do not belong together is refused") {
  const TemporaryFolder folder;
  const std::string file = folder / "state.safetensors";
  const auto cause_after = [&](auto change) {
    RunState state = example_state();
    change(state);
    save_run_state(file, state);
    return cause_of(file);
  };
  CHECK(cause_after([](RunState& s) { s.config.model = "resnet18"; }).find("resnet18") != std::string::npos);
  CHECK(cause_after([](RunState& s) { s.config.size = 9; }).find("size 9") != std::string::npos);
  CHECK(cause_after([](RunState& s) { s.config.threads = 100000; }).find("--threads") != std::string::npos);
  CHECK(cause_after([](RunState& s) { s.config.batch = 65; }).find("--batch") != std::string::npos);
  CHECK(cause_after([](RunState& s) {
          s.model[0].tensor.fill_(std::numeric_limits<double>::quiet_NaN());
        }).find("'a.weight' holds 4") != std::string::npos);
}

TEST_CASE("values of a state that are of the wrong kind are refused in plain words") {
  const TemporaryFolder folder;
  const std::string file = folder / "state.safetensors";
  save_run_state(file, example_state());
  const SafetensorsFile good = load_safetensors(file);
  const auto cause_with = [&](const std::string& part, const std::string& from, const std::string& to) {
    std::map<std::string, std::string> metadata = good.metadata;
    std::string& text = metadata.at(part);
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
    save_safetensors(file, good.tensors, metadata);
    const std::string cause = cause_of(file);
    CAPTURE(cause);
    CHECK(cause.find(file) != std::string::npos);
    CHECK(cause.find("json") == std::string::npos);
    return cause;
  };
  CHECK(cause_with("generators", R"("offset":123)", R"("offset":-1)").find("offset is -1") != std::string::npos);
  CHECK(cause_with("progress", R"("epoch":1)", R"("epoch":1.5)").find("epoch is 1.5") != std::string::npos);
  CHECK(cause_with("config", R"("batch":8)", R"("batch":-8)").find("--batch -8") != std::string::npos);
  CHECK(cause_with("config", R"("threads":0)", R"("threads":4294967296)").find("threads is 4294967296") !=
        std::string::npos);
  CHECK(cause_with("progress", R"("test_loss":1e-300)", R"("test_loss":null)").find("null") != std::string::npos);
  CHECK(cause_with("progress", R"("step":11)", R"("stop":11)").find("'step' not found") != std::string::npos);
  CHECK(cause_with("model", R"({)", R"()").find("not JSON") != std::string::npos);
}

TEST_CASE("a run whose data lies in a folder that is not named in UTF-8 can be saved") {
  const TemporaryFolder folder;
  const std::string file = folder / "state.safetensors";
  RunState state = example_state();
  state.config.data = "pictures\xff";
  CHECK_NOTHROW(save_run_state(file, state));
  CHECK(load_run_state(file).config.data == "pictures\xef\xbf\xbd");
}

TEST_CASE("the state of a run is not taken for a model, and the model beside it is named") {
  const TemporaryFolder folder;
  const std::string file = state_file_of(folder / "");
  std::filesystem::create_directories(std::filesystem::path(file).parent_path());
  save_run_state(file, example_state());
  CHECK_THROWS_WITH_AS(load_model(file), doctest::Contains("is the state of a run"), CheckpointError);
  const ModelSpec spec = spec_for("lenet", quadrants(1));
  save_model(model_file_of(folder / ""), *make_module(spec), spec);
  CHECK_THROWS_WITH_AS(load_model(file), doctest::Contains(("pass " + model_file_of(folder / "")).c_str()),
                       CheckpointError);
}

TEST_CASE("a model file says how to use it and gives its weights back") {
  const TemporaryFolder folder;
  const std::string file = model_file_of(folder / "");
  const ModelSpec spec = spec_for("lenet", quadrants(1));
  manual_seed(1);
  const auto saved = make_module(spec);
  save_model(file, *saved, spec);

  const ModelFile loaded = load_model(folder / "");  // the folder of the run does as well
  REQUIRE(loaded.spec);
  CHECK(loaded.spec->architecture == "lenet");
  CHECK(loaded.spec->size == 8);
  CHECK(loaded.spec->classes == spec.classes);
  CHECK(loaded.spec->stddev == spec.stddev);
  const auto other = make_module(*loaded.spec);
  apply_weights(loaded, *other);
  const auto a = saved->state(), b = other->state();
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) CHECK(a[i].tensor.to_vector<float>() == b[i].tensor.to_vector<float>());
}

TEST_CASE("weights of another model change nothing and name the file") {
  const TemporaryFolder folder;
  const std::string file = folder / "model.safetensors";
  ModelSpec spec = spec_for("lenet", quadrants(1));
  save_model(file, *make_module(spec), spec);
  spec.classes.push_back("fifth");
  const auto module = make_module(spec);
  const std::vector<float> before = module->parameters().back().to_vector<float>();
  try {
    apply_weights(load_model(file), *module);
    FAIL("they were loaded");
  } catch (const CheckpointError& error) {
    CHECK(error.cause().find(file) != std::string::npos);
    CHECK(error.cause().find("fc2") != std::string::npos);
  }
  CHECK(module->parameters().back().to_vector<float>() == before);
}

TEST_CASE("a description of a model that makes no sense is refused") {
  const TemporaryFolder folder;
  const std::string file = folder / "model.safetensors";
  for (const char* description :
       {"not JSON", "[]", R"({"architecture":"lenet"})",
        R"({"architecture":"lenet","channels":1,"size":-3,"classes":["a"],"mean":[0],"stddev":[1]})",
        R"({"architecture":"lenet","channels":2,"size":8,"classes":["a"],"mean":[0],"stddev":[1]})",
        R"({"architecture":"lenet","channels":1,"size":8,"classes":[],"mean":[0],"stddev":[1]})",
        R"({"architecture":"alexnet","channels":1,"size":8,"classes":["a"],"mean":[0],"stddev":[1]})",
        R"({"architecture":"lenet","channels":1,"size":8.5,"classes":["a"],"mean":[0],"stddev":[1]})",
        R"({"architecture":"lenet","channels":1,"size":8,"classes":["a"],"mean":[NaN],"stddev":[1]})",
        R"({"architecture":"lenet","channels":1,"size":8,"classes":["a"],"mean":[1e300],"stddev":[1]})",
        R"({"architecture":"lenet","channels":1,"size":8,"classes":["a"],"mean":[0],"stddev":[0]})",
        R"({"architecture":"lenet","channels":1,"size":8,"classes":["a"],"mean":[0],"stddev":[-1]})"}) {
    CAPTURE(description);
    save_safetensors(file, {{"w", Tensor::ones({1})}}, {{"cuttle.model", description}});
    try {
      load_model(file);
      FAIL_CHECK("it was loaded");
    } catch (const CheckpointError& error) {
      CAPTURE(error.cause());
      CHECK(error.cause().find(file) != std::string::npos);
      CHECK(error.cause().find("json") == std::string::npos);
    }
  }
}

TEST_CASE("a file that describes a model which cannot be made is at fault, not the flags") {
  const TemporaryFolder folder;
  const std::string file = folder / "model.safetensors";
  for (const std::int64_t size : {std::int64_t{1}, kMostSize}) {
    CAPTURE(size);
    ModelSpec spec = spec_for("lenet", quadrants(1));
    spec.size = size;
    save_safetensors(file, {{"w", Tensor::ones({1})}}, {{"cuttle.model", to_json(spec).dump()}});
    memory::allocator(kCpu).set_limit(std::uint64_t{1} << 30);
    CHECK_THROWS_WITH_AS(make_module(load_model(file).spec.value()), doctest::Contains(file.c_str()), CheckpointError);
    memory::allocator(kCpu).set_limit(std::nullopt);
  }
}

TEST_CASE("weights that are whole numbers, NaN or too large are refused by name and change nothing") {
  const TemporaryFolder folder;
  const std::string file = folder / "model.safetensors";
  const ModelSpec spec = spec_for("lenet", quadrants(1));
  const auto module = make_module(spec);
  const std::vector<float> before = module->parameters().front().to_vector<float>();
  const auto cause_with = [&](const Tensor& weight) {
    std::vector<nn::NamedTensor> state = module->state();
    REQUIRE(state[0].name == "conv1.weight");
    state[0].tensor = weight;
    save_safetensors(file, state);
    std::string cause;
    try {
      apply_weights(load_model(file), *module);
    } catch (const CheckpointError& error) {
      cause = error.cause();
    }
    CHECK(module->parameters().front().to_vector<float>() == before);
    CHECK(cause.find(file) != std::string::npos);
    return cause;
  };
  const Shape shape = module->parameters().front().shape();
  CHECK(cause_with(Tensor::ones(shape, {.dtype = DType::i32})).find("conv1.weight is of i32") != std::string::npos);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(cause_with(Tensor::full(shape, nan)).find("'conv1.weight' holds") != std::string::npos);
  CHECK(cause_with(Tensor::full(shape, 1e300, {.dtype = DType::f64})).find("'conv1.weight' holds") !=
        std::string::npos);
}
