#include "report/history.hpp"

#include <fstream>
#include <nlohmann/json.hpp>

namespace cuttle::report {
namespace {

using Json = nlohmann::json;

/// A number, or 0 where it is missing or null (an infinite figure has no JSON form).
template <class T> T number(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_number() ? found->get<T>() : T{};
}

History::Step step_from(const Json& json) {
  return {number<std::int64_t>(json, "step"), number<double>(json, "loss"), number<double>(json, "accuracy"),
          number<double>(json, "lr"), number<double>(json, "images_per_s")};
}

History::Epoch epoch_from(const Json& json) {
  return {number<std::int64_t>(json, "epoch"),
          number<std::int64_t>(json, "step"),
          number<double>(json, "train_loss"),
          number<double>(json, "train_accuracy"),
          number<double>(json, "test_loss"),
          number<double>(json, "test_accuracy"),
          number<double>(json, "images_per_s"),
          number<double>(json, "seconds"),
          number<std::uint64_t>(json, "peak_allocated_bytes")};
}

}  // namespace

History read_history(const std::string& metrics_file) {
  History history;
  std::ifstream in(metrics_file);
  for (std::string line; std::getline(in, line);) {
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object() || !json.contains("event")) continue;
    if (json["event"] == "step") history.steps.push_back(step_from(json));
    if (json["event"] == "epoch") history.epochs.push_back(epoch_from(json));
  }
  return history;
}

}  // namespace cuttle::report
