#pragma once
#include <optional>
#include <string>

#include "cuttle/data.hpp"
#include "report/history.hpp"
#include "train/events.hpp"

namespace cuttle::report {

/// What a report tells.
struct Report {
  train::StartEvent start;
  History history;
  std::optional<train::Evaluation> test;  ///< the latest; without one there is no confusion matrix and no mistakes
  const data::ImageSet* test_set = nullptr;
};

/// A self-contained HTML page: figures, curves, confusion matrix, worst mistakes as pictures, settings.
std::string to_html(const Report& report);

/// Keeps report.html of a run up to date: written after each epoch and at the end.
class ReportSink final : public train::EventSink {
 public:
  /// The curves come from the metrics file, which must be written before this sink is told. `test_set` must outlive it.
  ReportSink(std::string file, std::string metrics_file, const data::ImageSet& test_set);
  void started(const train::StartEvent& event) override;
  void epoch_saved(const train::EpochEvent& event) override;
  void ended(const train::EndEvent& event) override;
  std::vector<std::string> files() const override { return {file_}; }

 private:
  void write() const;
  std::string file_, metrics_file_;
  const data::ImageSet& test_set_;
  train::StartEvent start_;
  std::optional<train::Evaluation> test_;
};

}  // namespace cuttle::report
