#pragma once
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cuttle/data.hpp"
#include "cuttle/nn.hpp"
#include "cuttle/optim.hpp"
#include "train/config.hpp"
#include "train/events.hpp"
#include "train/model_file.hpp"
#include "train/run_state.hpp"
#include "train/stepper.hpp"

namespace cuttle::train {

/// One run: trains a model on a set, evaluates it after each epoch, and keeps its folder in a state from which it can
/// be resumed at any moment. The sets must outlive it.
class Trainer {
 public:
  struct Options {
    std::string out;                       ///< folder of the run
    std::vector<EventSink*> sinks;         ///< told in this order
    std::function<bool()> stop_requested;  ///< asked between steps; may be empty
    bool continues = false;                ///< the run in `out` goes on; otherwise what lies there goes to out/previous
  };

  /// A run from the beginning. Seeds the default generators, sets the number of threads and the memory limit. Throws
  /// UsageError if the settings do not fit the data, DataError if the test images are not like the training images.
  Trainer(TrainConfig config, const data::ImageSet& train_set, const data::ImageSet& test_set, Options options);
  /// A run that goes on from `state`, with state.config (of which the caller may have changed what may change). Throws
  /// CheckpointError if the data is not what it was.
  Trainer(const RunState& state, const data::ImageSet& train_set, const data::ImageSet& test_set, Options options);

  /// Trains to the end, to the step limit or until asked to stop. Steps are queued ahead of their results. Throws
  /// DivergedError, with the weights as they were before, if the loss or a gradient is not finite (in fp16, where such
  /// steps are left out and the loss is scaled down: if that does not help), and before anything is saved if the
  /// weights or the test loss are not; the saved state stays what it was.
  EndEvent run();

  nn::Module& module() { return *module_; }
  const ModelSpec& spec() const { return spec_; }

 private:
  using Clock = std::chrono::steady_clock;
  Trainer(TrainConfig config, ModelSpec spec, const data::ImageSet& train_set, const data::ImageSet& test_set,
          Options options);

  bool stop_requested() const { return options_.stop_requested && options_.stop_requested(); }
  bool at_step_limit() const { return config_.steps > 0 && progress_.step + queued() >= config_.steps; }
  std::int64_t total_steps() const;
  StartEvent start_event() const;
  /// A step that was queued and whose result has not come yet.
  struct Queued {
    Window window;
    double lr = 0;
    PhiloxKey generator;  ///< before it, to draw the same masks again
  };
  StepEvent step_event(const StepResult& result, double lr) const;
  std::int64_t queued() const { return static_cast<std::int64_t>(queued_.size()); }
  Window next_window() const;
  /// Trains until the end of the epoch, the limit or a request to stop.
  void train_epoch();
  void queue_step();
  void notice(const std::string& text);
  void take_result(const StepResult& result);
  /// Waits for the results of all steps.
  void drain();
  void measure_time();  ///< into epoch_seconds_ and train_seconds_
  /// False if it was asked to stop meanwhile.
  bool finish_epoch();
  /// Evaluates into last_test_. False if `stop` answered true; throws DivergedError.
  bool test(const std::function<bool()>& stop = {});
  [[noreturn]] void report_divergence(const StepResult& result, const Queued& step);
  bool is_lost(const StepResult& result) const;
  std::string divergence_hint() const;
  /// Throws DivergedError if a parameter or a running statistic is not finite.
  void check_weights() const;
  void save_state(const std::string& file);
  void save_all();
  EndEvent end_event(Ending ending);
  std::vector<std::string> files() const;

  TrainConfig config_;
  ModelSpec spec_;
  const data::ImageSet& train_set_;
  const data::ImageSet& test_set_;
  Options options_;
  Device device_;
  std::int64_t steps_per_epoch_;
  std::unique_ptr<nn::Module> module_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  optim::Schedule schedule_;
  data::Loader loader_;
  Progress progress_;
  std::unique_ptr<Stepper> stepper_;
  std::deque<Queued> queued_;

  // Of this process.
  double train_seconds_ = 0, epoch_seconds_ = 0;
  std::int64_t trained_images_ = 0, epoch_images_ = 0;
  std::uint64_t peak_allocated_ = 0, peak_reserved_ = 0;
  Clock::time_point measured_at_{}, saved_at_{};
  std::optional<std::int64_t> saved_step_;
  bool unsaved_ = true;  ///< the weights in the folder are not the present ones
  std::optional<Evaluation> last_test_;
  std::int64_t tested_step_ = -1;
};

}  // namespace cuttle::train
