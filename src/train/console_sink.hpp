#pragma once
#include <chrono>
#include <iosfwd>
#include <string>

#include "train/events.hpp"

namespace cuttle::train {

/// Text for people: on a terminal one line that is redrawn (a progress bar), elsewhere plain lines.
class ConsoleSink final : public EventSink {
 public:
  struct Options {
    int columns = 0;             ///< of the terminal; 0: plain lines
    std::string resume_command;  ///< printed when a run was stopped before its end
  };
  ConsoleSink(std::ostream& out, Options options) : out_(out), options_(std::move(options)) {}
  void started(const StartEvent& event) override;
  void stepped(const StepEvent& event) override;
  void epoch_saved(const EpochEvent& event) override;
  void ended(const EndEvent& event) override;

 private:
  using Clock = std::chrono::steady_clock;
  bool is_terminal() const { return options_.columns > 0; }
  void line(const std::string& text);
  void redraw(const std::string& text);

  std::ostream& out_;
  Options options_;
  std::int64_t epochs_ = 0, steps_per_epoch_ = 0;
  Clock::time_point shown_{};
};

}  // namespace cuttle::train
