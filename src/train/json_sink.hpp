#pragma once
#include <chrono>
#include <fstream>
#include <iosfwd>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "train/events.hpp"

namespace cuttle::train {

/// One object an event, with the keys of the command-line contract. Accuracies are fractions, sizes bytes, times
/// seconds; what is not known is null.
nlohmann::ordered_json to_json(const StartEvent& event);
nlohmann::ordered_json to_json(const StepEvent& event);
nlohmann::ordered_json to_json(const EpochEvent& event);
nlohmann::ordered_json to_json(const EndEvent& event);

/// JSON lines, flushed at least once a second: a step may take less time than a write.
class LineWriter {
 public:
  void write(std::ostream& out, const nlohmann::ordered_json& json);
  void flush(std::ostream& out);

 private:
  std::chrono::steady_clock::time_point flushed_{};
};

/// Steps come with a delay of at most a second, all else at once.
class JsonSink final : public EventSink {
 public:
  explicit JsonSink(std::ostream& out) : out_(out) {}
  void started(const StartEvent& event) override;
  void stepped(const StepEvent& event) override;
  void epoch_saved(const EpochEvent& event) override;
  void ended(const EndEvent& event) override;
  void flush() override;

 private:
  std::ostream& out_;
  LineWriter writer_;
};

/// metrics.jsonl of a run's folder: every step and epoch, without gaps or repeats over interruptions.
class MetricsFile final : public EventSink {
 public:
  /// When the run starts: a new file, or if it is resumed, the lines of `earlier` up to the step where it goes on. Its
  /// events throw IoError.
  explicit MetricsFile(std::string file, std::string earlier = {})
      : file_(std::move(file)), earlier_(std::move(earlier)) {}
  void started(const StartEvent& event) override;
  void stepped(const StepEvent& event) override;
  void epoch_done(const EpochEvent& event) override;
  void flush() override;
  std::vector<std::string> files() const override { return {file_}; }

 private:
  void check() const;
  std::string file_, earlier_;
  std::ofstream out_;
  LineWriter writer_;
};

}  // namespace cuttle::train
