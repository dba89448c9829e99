#include "train/trainer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cuttle/error.hpp"
#include "cuttle/memory.hpp"
#include "cuttle/random.hpp"
#include "train/batch_of_one.hpp"
#include "train/divergence.hpp"
#include "train/run_folder.hpp"

namespace cuttle::train {
namespace {

/// A kill or a power cut costs at most so much work.
constexpr auto kSaveEvery = std::chrono::minutes(5);
/// Steps that may be queued ahead of their results: more than the host ever falls behind, few enough to stop soon.
constexpr std::int64_t kMostAhead = 16;
/// fp16: so many steps in a row without an update are no search for the right scale any more.
constexpr std::int64_t kMostSkipped = 25;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double rate(std::int64_t images, double seconds) { return seconds > 0 ? static_cast<double>(images) / seconds : 0; }

void check_same_data(const RunState& state, const data::ImageSet& set) {
  const ModelSpec now = spec_for(state.config.model, set);
  const ModelSpec& then = state.spec;
  const auto describe = [](std::int64_t images, const ModelSpec& spec) {
    return fmt::format("{} images of {}x{}x{} in {} classes", images, spec.channels, spec.size, spec.size,
                       spec.classes.size());
  };
  if (set.size() != state.train_images || now.channels != then.channels || now.size != then.size ||
      now.classes != then.classes) {
    throw CheckpointError(fmt::format("the run was trained on {}, but '{}' has {}", describe(state.train_images, then),
                                      set.name, describe(set.size(), now)),
                          "resume with the data that the run was started with");
  }
}

void check_test_set(const ModelSpec& spec, const data::ImageSet& set) {
  if (set.channels == spec.channels && set.height == spec.size && set.width == spec.size && set.classes == spec.classes)
    return;
  throw DataError(
      fmt::format("the training images are {}x{}x{} in {} classes, but the test images {}x{}x{} in {}{}", spec.channels,
                  spec.size, spec.size, spec.classes.size(), set.channels, set.height, set.width, set.classes.size(),
                  set.classes.size() == spec.classes.size() && set.classes != spec.classes ? " of other names" : ""),
      "test with images of the same kind; --size brings all to one size");
}

/// What is allocated for the run counts against its limit from the first byte.
Device limited_device(const TrainConfig& config) {
  set_num_threads(config.threads);  // the loader's workers come of it
  const Device device = Device::parse(config.device);
  check_precision(config.precision, device);
  apply_compute_settings(config);
  memory::allocator(device).set_limit(config.memory_limit);
  return device;
}

std::string_view name_of_non_finite(double value) { return std::isnan(value) ? "NaN" : "infinite"; }

TrainConfig resolved(TrainConfig config, std::int64_t train_images) {
  validate(config);
  resolve_for(config, train_images);
  return config;
}

}  // namespace

Trainer::Trainer(TrainConfig config, ModelSpec spec, const data::ImageSet& train_set, const data::ImageSet& test_set,
                 Options options)
    : config_(resolved(std::move(config), train_set.size())),
      spec_(std::move(spec)),
      train_set_(train_set),
      test_set_(test_set),
      options_(std::move(options)),
      device_(limited_device(config_)),
      steps_per_epoch_(steps_per_epoch(config_, train_set.size())),
      schedule_(make_schedule(config_, train_set.size())),
      loader_(train_set, {.batch = config_.batch,
                          .shuffle = true,
                          .seed = config_.seed,
                          .device = device_,
                          .dtype = dtype_of(config_.precision),
                          .crop_flip = config_.augment == Augment::crop_flip}) {
  check_test_set(spec_, test_set_);
  check_batch_of_one(config_, spec_);
  config_.size = spec_.size;
  manual_seed(config_.seed);
  module_ = make_module(spec_);
  module_->to(device_);
  nn::apply_conv_rules(*module_, conv_rules(config_));
  optimizer_ = make_optimizer(config_, *module_);
  stepper_ = std::make_unique<Stepper>(*module_, *optimizer_,
                                       StepOptions{.label_smoothing = config_.label_smoothing,
                                                   .clip_grad_norm = config_.clip_grad_norm,
                                                   .scale_loss = config_.precision == Precision::fp16,
                                                   .capture = config_.graph,
                                                   .most_batches = std::min(config_.accumulate, loader_.batches())});
}

Trainer::Trainer(TrainConfig config, const data::ImageSet& train_set, const data::ImageSet& test_set, Options options)
    : Trainer(config, spec_for(config.model, train_set), train_set, test_set, std::move(options)) {
  if (config_.weights.empty()) return;
  const ModelFile file = load_model(config_.weights);
  if (file.spec && file.spec->architecture != config_.model) {
    throw CheckpointError(
        fmt::format("{} holds weights of {}, not of {}", file.file, file.spec->architecture, config_.model),
        fmt::format("pass --model {}", file.spec->architecture));
  }
  apply_weights(file, *module_);
}

Trainer::Trainer(const RunState& state, const data::ImageSet& train_set, const data::ImageSet& test_set,
                 Options options)
    : Trainer((check_same_data(state, train_set), state.config), state.spec, train_set, test_set, std::move(options)) {
  try {
    nn::load_state(*module_, state.model);
    optimizer_->load_state(state.optimizer);
  } catch (const CheckpointError& error) {
    throw CheckpointError(fmt::format("{}: {}", state.spec.file, error.cause()), error.hint());
  }
  default_generator().set_state(state.ops_generator);
  init_generator().set_state(state.init_generator);
  progress_ = state.progress;
  if (progress_.loss_scale && config_.precision == Precision::fp16) stepper_->set_loss_scale(*progress_.loss_scale);
}

EndEvent Trainer::run() {
  const RunLock lock(options_.out);
  if (!lock.why_unguarded().empty()) {
    notice(fmt::format("nothing guards {} against a second run: its file system has no locks ({})", options_.out,
                       lock.why_unguarded()));
  }
  // A folder that cannot be written is found out now, and there is a state to go back to.
  StartEvent start = start_event();
  if (options_.continues) {
    save_state(state_file_of(options_.out));
  } else {
    start.previous_run = begin_run_folder(options_.out, [this](const std::string& file) { save_state(file); });
  }
  for (EventSink* sink : options_.sinks) sink->started(start);
  while (progress_.epoch < config_.epochs.value() && !at_step_limit()) {
    train_epoch();
    if (progress_.step_in_epoch < steps_per_epoch_ || !finish_epoch()) break;
  }
  const Ending ending = progress_.epoch >= config_.epochs.value() ? Ending::finished
                        : at_step_limit()                         ? Ending::step_limit
                                                                  : Ending::interrupted;
  if (ending != Ending::interrupted && tested_step_ != progress_.step) test();
  if (unsaved_) save_all();
  const EndEvent end = end_event(ending);
  for (EventSink* sink : options_.sinks) sink->ended(end);
  return end;
}

void Trainer::train_epoch() {
  module_->train();
  memory::allocator(device_).reset_peak_stats();
  epoch_seconds_ = 0;
  epoch_images_ = 0;
  measured_at_ = Clock::now();
  while (progress_.step_in_epoch + queued() < steps_per_epoch_ && !at_step_limit()) {
    if (stop_requested()) break;
    queue_step();
    while (const auto result = stepper_->next(queued() > kMostAhead)) take_result(*result);
    if (Clock::now() - saved_at_ > kSaveEvery) {
      drain();
      save_state(state_file_of(options_.out));
      measured_at_ = Clock::now();
    }
  }
  drain();
  const memory::Stats stats = memory::allocator(device_).stats();
  peak_allocated_ = std::max(peak_allocated_, stats.peak_allocated_bytes);
  peak_reserved_ = std::max(peak_reserved_, stats.peak_reserved_bytes);
}

Window Trainer::next_window() const {
  const std::int64_t first = (progress_.step_in_epoch + queued()) * config_.accumulate;
  const std::int64_t last = std::min(first + config_.accumulate, loader_.batches());
  return {.batches = last - first,
          .images = (last == loader_.batches() ? train_set_.size() : last * config_.batch) - first * config_.batch,
          .load = [this, epoch = progress_.epoch, first](std::int64_t b, const data::Batch& into) {
            return loader_.load(epoch, first + b, into);
          }};
}

void Trainer::queue_step() {
  const bool told = !stepper_->why_not_captured().empty();
  Queued step{next_window(), schedule_(progress_.step + queued()), default_generator().state()};
  stepper_->step(step.window, step.lr);
  queued_.push_back(std::move(step));
  if (const std::string& why = stepper_->why_not_captured(); !told && !why.empty()) {
    notice(fmt::format("steps are not recorded as a CUDA graph: {}; going on without", why));
  }
}

void Trainer::notice(const std::string& text) {
  for (EventSink* sink : options_.sinks) sink->noticed(text);
}

void Trainer::measure_time() {
  const auto now = Clock::now();
  const double seconds = std::chrono::duration<double>(now - measured_at_).count();
  measured_at_ = now;
  epoch_seconds_ += seconds;
  train_seconds_ += seconds;
}

void Trainer::take_result(const StepResult& result) {
  const Queued step = std::move(queued_.front());
  queued_.pop_front();
  if (is_lost(result)) report_divergence(result, step);
  unsaved_ = true;
  ++progress_.step;
  ++progress_.step_in_epoch;
  // Of a step that was left out the loss may have overflowed too.
  if (std::isfinite(result.loss)) progress_.loss_sum += result.loss * static_cast<double>(result.images);
  progress_.correct += result.correct;
  progress_.images += result.images;
  measure_time();
  epoch_images_ += result.images;
  trained_images_ += result.images;
  const StepEvent event = step_event(result, step.lr);
  for (EventSink* sink : options_.sinks) sink->stepped(event);
}

bool Trainer::is_lost(const StepResult& result) const {
  if (config_.precision != Precision::fp16) return !result.finite();
  if (!result.skipped()) return false;
  const LossScale& scale = result.loss_scale;
  return scale.scale <= Kernels::LossScaleRule().least || scale.skipped_steps >= kMostSkipped;
}

void Trainer::drain() {
  while (const auto result = stepper_->next(true)) take_result(*result);
  for (EventSink* sink : options_.sinks) sink->flush();
}

bool Trainer::finish_epoch() {
  const memory::Stats stats = memory::allocator(device_).stats();
  const auto start = Clock::now();
  if (!test(options_.stop_requested)) return false;
  const auto images = static_cast<double>(progress_.images);
  EpochEvent event{.epoch = progress_.epoch + 1,
                   .step = progress_.step,
                   .train_loss = progress_.loss_sum / images,
                   .train_accuracy = static_cast<double>(progress_.correct) / images,
                   .images_per_s = rate(epoch_images_, epoch_seconds_),
                   .seconds = epoch_seconds_,
                   .test_seconds = seconds_since(start),
                   .peak_allocated_bytes = stats.peak_allocated_bytes,
                   .peak_reserved_bytes = stats.peak_reserved_bytes,
                   .test = *last_test_};
  progress_ = {.epoch = progress_.epoch + 1,
               .step = progress_.step,
               .best_test_accuracy = std::max(progress_.best_test_accuracy.value_or(0), event.test.accuracy()),
               .test_accuracy = event.test.accuracy(),
               .test_loss = event.test.loss};
  for (EventSink* sink : options_.sinks) sink->epoch_done(event);
  save_all();
  for (EventSink* sink : options_.sinks) sink->epoch_saved(event);
  return true;
}

bool Trainer::test(const std::function<bool()>& stop) {
  const AllocationScope memory_scope = stepper_->memory_scope();
  const std::optional<Evaluation> result =
      evaluate(*module_, test_set_, config_.batch, device_, dtype_of(config_.precision), stop);
  if (!result) return false;
  if (!std::isfinite(result->loss)) {
    throw DivergedError(fmt::format("after step {} of epoch {} the loss on the test images is {}: {}", progress_.step,
                                    progress_.epoch + 1, name_of_non_finite(result->loss),
                                    first_non_finite_weight(*module_).value_or("an output of the model overflows")),
                        divergence_hint());
  }
  last_test_ = result;
  tested_step_ = progress_.step;
  return true;
}

std::int64_t Trainer::total_steps() const {
  const std::int64_t all = config_.epochs.value() * steps_per_epoch_;
  return config_.steps > 0 ? std::min(config_.steps, all) : all;
}

StartEvent Trainer::start_event() const {
  std::int64_t parameters = 0;
  for (const Tensor& p : module_->parameters()) parameters += p.numel();
  return {.config = config_,
          .data_name = train_set_.name,
          .device = device_.str(),
          .parameters = parameters,
          .train_images = train_set_.size(),
          .test_images = test_set_.size(),
          .classes = static_cast<std::int64_t>(spec_.classes.size()),
          .channels = spec_.channels,
          .size = spec_.size,
          .steps_per_epoch = steps_per_epoch_,
          .total_steps = total_steps(),
          .resumed_at_step = progress_.step,
          .resumed_at_epoch = progress_.epoch,
          .threads = num_threads(),
          .out = options_.out};
}

StepEvent Trainer::step_event(const StepResult& result, double lr) const {
  const memory::Stats stats = memory::allocator(device_).stats();
  const double images_per_s = rate(epoch_images_, epoch_seconds_);
  const double images_left = static_cast<double>(total_steps() - progress_.step) *
                             static_cast<double>(train_set_.size()) / static_cast<double>(steps_per_epoch_);
  StepEvent event{.epoch = progress_.epoch + 1,
                  .step = progress_.step,
                  .step_in_epoch = progress_.step_in_epoch,
                  .loss = result.loss,
                  .accuracy = static_cast<double>(result.correct) / static_cast<double>(result.images),
                  .lr = lr,
                  .grad_norm = result.grad_norm,
                  .images_per_s = images_per_s,
                  .seconds_left = images_per_s > 0 ? images_left / images_per_s : 0,
                  .allocated_bytes = stats.allocated_bytes,
                  .peak_allocated_bytes = stats.peak_allocated_bytes,
                  .peak_reserved_bytes = stats.peak_reserved_bytes};
  if (config_.precision == Precision::fp16) {
    event.loss_scale = result.loss_scale.scale;
    event.skipped = result.skipped();
  }
  return event;
}

void Trainer::report_divergence(const StepResult& result, const Queued& step) {
  const bool fp16 = config_.precision == Precision::fp16;
  const double scale = fp16 ? result.loss_scale.scale : 1;
  stepper_.reset();  // a recorded step's memory may be needed for this
  default_generator().set_state(step.generator);
  const std::string where = first_non_finite(*module_, step.window, config_.label_smoothing, scale);
  const std::string when = fmt::format("step {} of epoch {}", progress_.step + 1, progress_.epoch + 1);
  if (fp16 && std::isfinite(result.loss)) {
    throw DivergedError(
        fmt::format("gradients overflow fp16 at {}, the {}th step in a row that had to be left out, with "
                    "the loss scaled by no more than {}: {}",
                    when, result.loss_scale.skipped_steps, scale, where),
        "train with --precision bf16, whose range is that of fp32; or " + divergence_hint());
  }
  const std::string what = std::isfinite(result.loss)
                               ? fmt::format("the norm of the gradients is {}", name_of_non_finite(result.grad_norm))
                               : fmt::format("the loss is {}", name_of_non_finite(result.loss));
  throw DivergedError(fmt::format("{} at {}: {}", what, when, where), divergence_hint());
}

std::string Trainer::divergence_hint() const {
  const std::string state =
      saved_step_ ? fmt::format("; the state after step {} lies in {}", *saved_step_, options_.out) : std::string();
  return fmt::format("lower --lr (now {}), or try --warmup or --clip-grad-norm 1{}", config_.lr.value(), state);
}

void Trainer::check_weights() const {
  const std::optional<std::string> found = first_non_finite_weight(*module_);
  if (!found) return;
  if (progress_.step == 0) {
    throw DivergedError(fmt::format("of the weights to start from {}", *found),
                        "give --weights a file that a good run has written");
  }
  throw DivergedError(fmt::format("after step {} of epoch {} {}", progress_.step, progress_.epoch + 1, *found),
                      divergence_hint());
}

void Trainer::save_state(const std::string& file) {
  check_weights();
  if (config_.precision == Precision::fp16) progress_.loss_scale = stepper_->loss_scale();
  save_run_state(file, {.config = config_,
                        .spec = spec_,
                        .train_images = train_set_.size(),
                        .progress = progress_,
                        .ops_generator = default_generator().state(),
                        .init_generator = init_generator().state(),
                        .model = module_->state(),
                        .optimizer = optimizer_->state()});
  saved_at_ = Clock::now();
  saved_step_ = progress_.step;
}

void Trainer::save_all() {
  check_weights();
  // The state last: whatever it describes is already there.
  save_model(model_file_of(options_.out), *module_, spec_);
  save_state(state_file_of(options_.out));
  unsaved_ = false;
}

std::vector<std::string> Trainer::files() const {
  std::vector<std::string> files{model_file_of(options_.out), state_file_of(options_.out)};
  for (const EventSink* sink : options_.sinks) {
    for (std::string& file : sink->files()) files.push_back(std::move(file));
  }
  return files;
}

EndEvent Trainer::end_event(Ending ending) {
  EndEvent end{.ending = ending,
               .epoch = progress_.epoch,
               .step = progress_.step,
               .best_test_accuracy = progress_.best_test_accuracy,
               .test_accuracy = progress_.test_accuracy,
               .test_loss = progress_.test_loss,
               .seconds = train_seconds_,
               .images_per_s = rate(trained_images_, train_seconds_),
               .peak_allocated_bytes = peak_allocated_,
               .peak_reserved_bytes = peak_reserved_,
               .out = options_.out,
               .files = files()};
  if (last_test_ && tested_step_ == progress_.step) {
    end.test_accuracy = last_test_->accuracy();
    end.test_loss = last_test_->loss;
    end.best_test_accuracy = std::max(end.best_test_accuracy.value_or(0), last_test_->accuracy());
    end.test = last_test_;
  }
  return end;
}

}  // namespace cuttle::train
