#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/config.hpp"
#include "train/evaluate.hpp"

namespace cuttle::train {

struct StartEvent {
  TrainConfig config;  ///< with defaults resolved
  std::string data_name, device;
  std::int64_t parameters = 0, train_images = 0, test_images = 0, classes = 0, channels = 0, size = 0;
  std::int64_t steps_per_epoch = 0, total_steps = 0;
  std::int64_t resumed_at_step = 0;   ///< 0: from the beginning
  std::int64_t resumed_at_epoch = 0;  ///< whole epochs done then
  int threads = 0;
  std::string out;
  std::string previous_run = {};  ///< folder to which a run that lay in `out` was moved; empty: there was none
};

struct StepEvent {
  std::int64_t epoch = 0;                 ///< from 1
  std::int64_t step = 0;                  ///< optimizer steps done in the whole run
  std::int64_t step_in_epoch = 0;         ///< from 1
  double loss = 0;                        ///< mean over the images of the step
  double accuracy = 0;                    ///< on the images of the step, before the update
  double lr = 0, grad_norm = 0;           ///< the norm before clipping
  std::optional<double> loss_scale = {};  ///< fp16: after the step
  bool skipped = false;                   ///< fp16: a gradient overflowed, and the step changed nothing but the scale
  double images_per_s = 0;                ///< of this epoch so far
  double seconds_left = 0;                ///< of training, estimated
  std::uint64_t allocated_bytes = 0, peak_allocated_bytes = 0, peak_reserved_bytes = 0;
};

struct EpochEvent {
  std::int64_t epoch = 0, step = 0;
  double train_loss = 0, train_accuracy = 0;  ///< while training, so before each update
  double images_per_s = 0, seconds = 0;       ///< of training, without the evaluation
  double test_seconds = 0;
  std::uint64_t peak_allocated_bytes = 0, peak_reserved_bytes = 0;
  Evaluation test;
};

/// Why a run ended.
enum class Ending : std::uint8_t { finished, step_limit, interrupted };

struct EndEvent {
  Ending ending = Ending::finished;
  std::int64_t epoch = 0, step = 0;  ///< whole epochs and steps done
  std::optional<double> best_test_accuracy, test_accuracy, test_loss;
  double seconds = 0, images_per_s = 0;  ///< of training in this process
  std::uint64_t peak_allocated_bytes = 0, peak_reserved_bytes = 0;
  std::string out;
  std::vector<std::string> files;
  std::optional<Evaluation> test = {};  ///< of the final weights
};

/// Somebody who is told how training goes: a terminal, a log, a file.
class EventSink {
 public:
  virtual ~EventSink() = default;
  /// A sentence about what goes another way than people expect; comes at any time.
  virtual void noticed(const std::string&) {}
  virtual void started(const StartEvent&) {}
  virtual void stepped(const StepEvent&) {}
  /// Before the state of this epoch is saved: for records that a resumed run cuts back to its state. What throws here
  /// costs the epoch.
  virtual void epoch_done(const EpochEvent&) {}
  /// Once it is saved: for everything else.
  virtual void epoch_saved(const EpochEvent&) {}
  virtual void ended(const EndEvent&) {}
  /// Writes out what is held back; before a state is saved and when training pauses.
  virtual void flush() {}
  /// Files that this sink writes.
  virtual std::vector<std::string> files() const { return {}; }
};

}  // namespace cuttle::train
