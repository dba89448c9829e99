#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cuttle/nn.hpp"
#include "cuttle/optim.hpp"
#include "cuttle/philox.hpp"
#include "cuttle/serialization.hpp"
#include "train/config.hpp"
#include "train/model_file.hpp"
#include "train/step.hpp"

namespace cuttle::train {

/// How far a run has come. The batches that come next, the learning rate and the figures of the epoch follow from it.
struct Progress {
  std::int64_t epoch = 0;          ///< whole epochs, evaluated
  std::int64_t step = 0;           ///< optimizer steps in the whole run
  std::int64_t step_in_epoch = 0;  ///< of them in the present epoch
  double loss_sum = 0;             ///< over the images of the present epoch
  std::int64_t correct = 0, images = 0;
  std::optional<double> best_test_accuracy, test_accuracy, test_loss;
  std::optional<LossScale> loss_scale = {};  ///< fp16 only
};

/// All that decides how a run goes on: loading it and training is bit-equal to never having stopped.
struct RunState {
  TrainConfig config;
  ModelSpec spec;
  std::int64_t train_images = 0;
  Progress progress;
  PhiloxKey ops_generator, init_generator;
  std::vector<nn::NamedTensor> model, optimizer;
};

/// Throws UsageError, naming both numbers, if these settings end before what the run has done.
void check_goes_on(const TrainConfig& config, const Progress& done, std::int64_t train_images);

/// One file, replaced as a whole: a process that dies while saving leaves the old state or the new one. Throws IoError.
void save_run_state(const std::string& file, const RunState& state);
/// Whether save_run_state() wrote it: a state holds weights too, but is no model.
bool is_run_state(const SafetensorsFile& content);
/// Throws CheckpointError naming the file and what is wrong with it.
RunState load_run_state(const std::string& file);

}  // namespace cuttle::train
