#pragma once
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cuttle/conv.hpp"
#include "cuttle/nn.hpp"
#include "cuttle/optim.hpp"

namespace cuttle::train {

enum class OptimizerKind : std::uint8_t { sgd, adamw };
enum class ScheduleKind : std::uint8_t { constant, step, cosine, one_cycle };
enum class Precision : std::uint8_t { fp32, tf32, fp16, bf16 };
enum class Augment : std::uint8_t { none, crop_flip };

std::string_view name_of(OptimizerKind kind);
std::string_view name_of(ScheduleKind kind);
std::string_view name_of(Precision precision);
std::string_view name_of(Augment augment);
std::string_view name_of(ConvPolicy path);
/// From the names above; throw UsageError listing them.
OptimizerKind parse_optimizer(std::string_view text);
ScheduleKind parse_schedule(std::string_view text);
Precision parse_precision(std::string_view text);
Augment parse_augment(std::string_view text);
ConvPolicy parse_conv(std::string_view text);

/// Of images and activations. Parameters are f32 in any precision.
DType dtype_of(Precision precision);
/// Throws UsageError where the device cannot compute in this precision: 16 bits need a GPU.
void check_precision(Precision precision, Device device);

/// Everything that decides how a run goes. The defaults train LeNet on MNIST to about 99% in two epochs.
struct TrainConfig {
  std::string model = "lenet";
  std::string data;       ///< a folder, or "synthetic"
  std::int64_t size = 0;  ///< height and width of the images; 0 takes the data's
  std::string weights;    ///< file to start from; empty starts from random weights

  std::optional<std::int64_t> epochs;  ///< unset: 2, or as many as `steps` needs
  std::int64_t steps = 0;              ///< stop after so many optimizer steps; 0 runs all epochs
  std::int64_t batch = 128;            ///< images that are in memory at once
  std::int64_t accumulate = 1;         ///< batches whose gradients make one optimizer step

  OptimizerKind optimizer = OptimizerKind::sgd;
  std::optional<double> lr;            ///< unset: resolve_for() takes what suits the optimizer
  double momentum = 0.9;               ///< sgd only
  std::optional<double> weight_decay;  ///< unset: as lr
  double label_smoothing = 0;
  ScheduleKind schedule = ScheduleKind::one_cycle;
  std::int64_t warmup = 0;    ///< steps of linear rise before the schedule
  double clip_grad_norm = 0;  ///< 0: no clipping
  Augment augment = Augment::none;

  std::string device = "auto";
  Precision precision = Precision::fp32;
  std::optional<bool> tf32_conv, tf32_matmul;  ///< unset: where precision is tf32
  ConvPolicy conv = ConvPolicy::heuristic;
  std::vector<std::string> algo;  ///< rules for parse_conv_rule(), a later one before an earlier one
  std::int64_t measure_limit = 10;
  bool no_cudnn = false, no_reduced_precision = false;  ///< see ConvSettings
  bool deterministic = false;
  bool graph = true;  ///< record and replay steps where the device can; changes no number and is not saved
  std::optional<std::uint64_t> memory_limit, workspace_limit;  ///< bytes
  int threads = 0;                                             ///< 0: all cores
  std::uint64_t seed = 0;
};

/// Largest height and width of images.
inline constexpr std::int64_t kMostSize = 16384;

/// Most that memory_limit and workspace_limit may be: 1 PiB, more than any device has.
inline constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 50;

/// Settings of convolutions and matrix products for this process.
void apply_compute_settings(const TrainConfig& config);
/// config.algo; throws UsageError naming --algo.
std::vector<ConvRule> conv_rules(const TrainConfig& config);
/// "convolutions: measure, fwd=gemm, deterministic": what differs from the default; empty where nothing does.
std::string describe_convolutions(const TrainConfig& config);

/// Checks every value that can be checked without the data. Throws UsageError naming the flag.
void validate(const TrainConfig& config);
/// Fills in epochs, lr, weight_decay, tf32_conv and tf32_matmul, and checks what depends on the number of training
/// images. Throws UsageError if the batch is larger than the set or the warm-up as long as the run.
void resolve_for(TrainConfig& config, std::int64_t train_images);

/// Keys are the flags' names without dashes. Unset values are left out.
nlohmann::ordered_json to_json(const TrainConfig& config);
/// Missing keys keep their defaults. Throws CheckpointError if a value is of the wrong kind.
TrainConfig config_from_json(const nlohmann::ordered_json& json);
/// The settings of a run that goes on: those it was started with, changed by what `wanted` says for the keys in
/// `given`. Only epochs, device, threads, memory-limit, data and how convolutions are chosen may change; steps are
/// always taken from `wanted`. Throws CheckpointError if the model differs, UsageError if anything else does, listing
/// each difference.
TrainConfig resumed_config(const TrainConfig& started, const TrainConfig& wanted,
                           const std::vector<std::string>& given);

/// Optimizer steps in an epoch: the last, shorter window is a step too.
std::int64_t steps_per_epoch(const TrainConfig& config, std::int64_t train_images);

/// These two take a resolved configuration.
std::unique_ptr<optim::Optimizer> make_optimizer(const TrainConfig& config, const nn::Module& module);
optim::Schedule make_schedule(const TrainConfig& config, std::int64_t train_images);

}  // namespace cuttle::train
