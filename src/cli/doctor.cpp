#include <fmt/format.h>
#include <zlib.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.hpp"
#include "cli/options.hpp"
#include "cli/output.hpp"
#include "core/text.hpp"
#include "cpu/cpu_info.hpp"
#include "cuttle/device.hpp"
#include "cuttle/error.hpp"
#include "cuttle/models.hpp"
#include "cuttle/version.hpp"
#include "io/json.hpp"
#include "kernels.hpp"

namespace cuttle::cli {
namespace {

using Json = nlohmann::ordered_json;

Json build_facts() {
#ifdef NDEBUG
  const char* checks = "off";
#else
  const char* checks = "on";
#endif
  return {{"topic", "build"}, {"version", kVersion}, {"compiler", __VERSION__}, {"assertions", checks}};
}

Json cpu_facts() {
  const DeviceInfo info = devices(DeviceKind::cpu).at(0);
  return {{"topic", "device"},
          {"device", "cpu"},
          {"name", info.name},
          {"threads", num_threads()},
          {"simd", cpu::simd_instructions()},
          {"total_bytes", info.total_bytes},
          {"free_bytes", info.free_bytes}};
}

std::vector<Json> cuda_facts() {
  std::vector<Json> facts;
  for (const DeviceInfo& info : devices(DeviceKind::cuda)) {
    facts.push_back({{"topic", "device"},
                     {"device", info.device.str()},
                     {"name", info.name},
                     {"total_bytes", info.total_bytes},
                     {"free_bytes", info.free_bytes}});
  }
  if (!facts.empty() && backend(DeviceKind::cuda).facts) {
    for (const auto& [name, version] : backend(DeviceKind::cuda).facts()) {
      facts.push_back({{"topic", "library"}, {"name", name}, {"version", version}});
    }
  }
  if (facts.empty()) facts.push_back({{"topic", "cuda"}, {"available", false}, {"reason", why_no_cuda()}});
  return facts;
}

std::vector<Json> library_facts() {
  const auto version = [](const char* name, std::string text) {
    return Json{{"topic", "library"}, {"name", name}, {"version", std::move(text)}};
  };
  return {version("Eigen", cpu::eigen_version()),
          version("fmt", fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100)),
          version("zlib", zlibVersion()), version("CLI11", CLI11_VERSION),
          version("nlohmann-json", fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR,
                                               NLOHMANN_JSON_VERSION_PATCH))};
}

Json data_facts(const std::string& given) {
  const std::string path = given.empty() ? shipped_mnist() : given;
  if (path.empty()) {
    return {{"topic", "data"}, {"found", false}, {"reason", "data/mnist is not here, and no --data is given"}};
  }
  try {
    const data::ImageSet train = data::open(path, data::Split::train), test = data::open(path, data::Split::test);
    return {{"topic", "data"},
            {"found", true},
            {"path", path},
            {"name", train.name},
            {"train_images", train.size()},
            {"test_images", test.size()},
            {"channels", train.channels},
            {"height", train.height},
            {"width", train.width},
            {"classes", train.classes.size()}};
  } catch (const DataError& error) {
    return {{"topic", "data"}, {"found", false}, {"path", path}, {"reason", error.cause()}};
  }
}

Json model_facts() {
  std::vector<std::string> names;
  for (const models::ModelInfo& info : models::zoo()) names.push_back(info.name);
  return {{"topic", "models"}, {"names", names}};
}

/// "topic  key value, key value": what the JSON says, for people.
std::string as_text(const Json& facts) {
  std::string text = fmt::format("{:<9}", facts.at("topic").get<std::string>());
  const char* separator = "";
  for (const auto& [key, value] : facts.items()) {
    if (key == "topic") continue;
    std::string shown = value.is_string() ? value.get<std::string>() : to_text(value);
    if (key.ends_with("_bytes")) shown = format_bytes(value.get<std::uint64_t>());
    std::string label = key.ends_with("_bytes") ? key.substr(0, key.size() - 6) : key;
    text += fmt::format("{}{} {}", separator, label, shown);
    separator = ", ";
  }
  return text;
}

}  // namespace

void add_doctor(CLI::App& app) {
  CLI::App* command = app.add_subcommand("doctor", "Say what this build and this machine can do, and why not more");
  const auto json = std::make_shared<bool>(false);
  const auto data = std::make_shared<std::string>();
  command->add_option("--data", *data, "data set to look at; default: the shipped data/mnist");
  command->add_flag("--json", *json, "one JSON object a line");
  command->callback([json, data] {
    std::vector<Json> facts{build_facts(), cpu_facts()};
    for (auto&& list : {cuda_facts(), library_facts()}) facts.insert(facts.end(), list.begin(), list.end());
    facts.push_back(model_facts());
    facts.push_back(data_facts(*data));
    for (const Json& fact : facts) say("{}\n", *json ? to_text(fact) : as_text(fact));
    deliver();
  });
}

}  // namespace cuttle::cli
