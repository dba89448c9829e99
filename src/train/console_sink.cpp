#include "train/console_sink.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

#include "core/text.hpp"
#include "cuttle/version.hpp"

namespace cuttle::train {
namespace {

constexpr auto kRedrawEvery = std::chrono::milliseconds(100);  // as often as an eye needs
constexpr auto kPlainLineEvery = std::chrono::seconds(5);
constexpr int kBarWidth = 24, kNarrowestBar = 8;

std::string bar(double fraction, int width) {
  const int full = std::clamp(static_cast<int>(fraction * width), 0, width);
  std::string text;
  for (int i = 0; i < width; ++i) text += i < full ? "█" : "░";
  return text;
}

std::string percent(double fraction) { return fmt::format("{:.2f}%", 100 * fraction); }

}  // namespace

void ConsoleSink::line(const std::string& text) {
  if (is_terminal()) out_ << "\r\x1b[K";
  out_ << text << std::endl;
}

void ConsoleSink::redraw(const std::string& text) { out_ << "\r\x1b[K" << text << std::flush; }

void ConsoleSink::started(const StartEvent& e) {
  epochs_ = e.config.epochs.value_or(0);
  steps_per_epoch_ = e.steps_per_epoch;
  line(fmt::format("cuttle {}: {}, {} parameters, on {} with {} thread{}", kVersion, e.config.model,
                   human_count(e.parameters), e.device, e.threads, e.threads == 1 ? "" : "s"));
  line(fmt::format("{}: {} images to train on, {} to test, {}x{}x{}, {} classes", e.data_name,
                   human_count(e.train_images), human_count(e.test_images), e.channels, e.size, e.size, e.classes));
  line(fmt::format(
      "{} epoch{} of {} steps, batch {}{}, {}, lr {} {}, seed {}, to {}", epochs_, epochs_ == 1 ? "" : "s",
      e.steps_per_epoch, e.config.batch, e.config.accumulate > 1 ? fmt::format(" x {}", e.config.accumulate) : "",
      name_of(e.config.optimizer), e.config.lr.value_or(0), name_of(e.config.schedule), e.config.seed, e.out));
  if (const std::string text = describe_convolutions(e.config); !text.empty()) line(text);
  if (e.resumed_at_step > 0) line(fmt::format("resumed after step {}", e.resumed_at_step));
}

void ConsoleSink::stepped(const StepEvent& e) {
  const auto now = Clock::now();
  const bool due = is_terminal() ? now - shown_ >= kRedrawEvery : now - shown_ >= kPlainLineEvery;
  if (!due && !(is_terminal() && e.step_in_epoch == steps_per_epoch_)) return;
  shown_ = now;
  const std::string figures =
      fmt::format("{}/{}  {:.0f} img/s  loss {:.4f}  mem {} of {} reserved  ETA {}", e.step_in_epoch, steps_per_epoch_,
                  e.images_per_s, e.loss, format_bytes(e.peak_allocated_bytes), format_bytes(e.peak_reserved_bytes),
                  human_duration(e.seconds_left));
  const std::string head = fmt::format("epoch {}/{}", e.epoch, epochs_);
  if (!is_terminal()) {
    line(fmt::format("{}  step {}", head, figures));
    return;
  }
  const int room = options_.columns - static_cast<int>(head.size() + figures.size()) - 5;
  const double done = static_cast<double>(e.step_in_epoch) / static_cast<double>(steps_per_epoch_);
  const std::string middle = room >= kNarrowestBar ? bar(done, std::min(room, kBarWidth)) + "  " : "";
  // A line longer than the terminal would wrap and could not be redrawn.
  const std::string text = fmt::format("{}  {}{}", head, middle, figures);
  redraw(room >= kNarrowestBar ? text : text.substr(0, static_cast<std::size_t>(options_.columns - 1)));
}

void ConsoleSink::epoch_saved(const EpochEvent& e) {
  line(
      fmt::format("epoch {}/{}  train loss {:.4f}, accuracy {}  test loss {:.4f}, accuracy {}  {:.1f} s, {:.0f} img/s, "
                  "peak {}",
                  e.epoch, epochs_, e.train_loss, percent(e.train_accuracy), e.test.loss, percent(e.test.accuracy()),
                  e.seconds, e.images_per_s, format_bytes(e.peak_allocated_bytes)));
}

void ConsoleSink::ended(const EndEvent& e) {
  if (e.ending == Ending::interrupted) line(fmt::format("stopped and saved after step {}", e.step));
  if (e.ending == Ending::step_limit) {
    line(fmt::format("ended after step {} as asked; test accuracy {}", e.step, percent(e.test_accuracy.value_or(0))));
  }
  if (e.ending == Ending::finished) {
    line(fmt::format("done: test accuracy {}, best {}, {:.1f} s of training", percent(e.test_accuracy.value_or(0)),
                     percent(e.best_test_accuracy.value_or(0)), e.seconds));
  }
  for (const std::string& file : e.files) line("  " + file);
  if (e.ending != Ending::finished) line("to go on: " + options_.resume_command);
}

}  // namespace cuttle::train
