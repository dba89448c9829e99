#pragma once
#include <fstream>
#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "train/events.hpp"

namespace cuttle::train {

/// One object an event, with the keys of the command-line contract. Accuracies are fractions, sizes bytes, times
/// seconds; what is not known is null.
nlohmann::ordered_json to_json(const StartEvent& event);
nlohmann::ordered_json to_json(const StepEvent& event);
nlohmann::ordered_json to_json(const EpochEvent& event);
nlohmann::ordered_json to_json(const EndEvent& event);

/// JSON lines, flushed one by one.
class JsonSink final : public EventSink {
 public:
  explicit JsonSink(std::ostream& out) : out_(out) {}
  void started(const StartEvent& event) override;
  void stepped(const StepEvent& event) override;
  void epoch_done(const EpochEvent& event) override;
  void ended(const EndEvent& event) override;

 private:
  std::ostream& out_;
};

/// metrics.jsonl of a run's folder: every step and epoch, without gaps or repeats over interruptions.
class MetricsFile final : public EventSink {
 public:
  /// A new file, or with `resume_from` the lines of that file up to `resume_step`. Throws IoError.
  explicit MetricsFile(std::string file, const std::string& resume_from = {}, std::int64_t resume_step = 0);
  void stepped(const StepEvent& event) override;
  void epoch_done(const EpochEvent& event) override;
  std::vector<std::string> files() const override { return {file_}; }

 private:
  void write(const nlohmann::ordered_json& json);
  std::string file_;
  std::ofstream out_;
};

}  // namespace cuttle::train
