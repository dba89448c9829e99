#pragma once
#include "train/config.hpp"
#include "train/model_file.hpp"

namespace cuttle::train {

/// Throws UsageError if the batch is one image and the model cannot learn from one, because a batch norm would see a
/// single value a channel. It is tried, on a model of its own.
void check_batch_of_one(const TrainConfig& config, const ModelSpec& spec);

}  // namespace cuttle::train
