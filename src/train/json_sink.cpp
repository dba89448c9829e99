#include "train/json_sink.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>

#include "cuttle/error.hpp"
#include "cuttle/version.hpp"
#include "io/atomic_file.hpp"
#include "io/json.hpp"

namespace cuttle::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr auto kFlushEvery = std::chrono::seconds(1);

Json or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

const char* name_of(Ending ending) {
  switch (ending) {
    case Ending::finished: return "finished";
    case Ending::step_limit: return "step_limit";
    case Ending::interrupted: return "interrupted";
  }
  return "?";
}

/// Lines of an earlier part of the run that the state at `step`, after `epoch` whole epochs, knows of: the epoch that
/// ends with this step may have been told of without being saved. A torn last line is dropped with the rest.
std::string lines_up_to(const std::string& file, std::int64_t step, std::int64_t epoch) {
  std::ifstream in(file);
  std::string kept, line;
  while (std::getline(in, line)) {
    const Json json = Json::parse(line, nullptr, false);
    if (json.is_discarded() || !json.is_object() || json.value("step", step + 1) > step) break;
    if (json.value("event", "") == "epoch" && json.value("epoch", epoch + 1) > epoch) break;
    kept += line + '\n';
  }
  return kept;
}

}  // namespace

Json to_json(const StartEvent& e) {
  Json json = {{"event", "start"},
               {"version", kVersion},
               {"model", e.config.model},
               {"parameters", e.parameters},
               {"data", e.data_name},
               {"train_images", e.train_images},
               {"test_images", e.test_images},
               {"classes", e.classes},
               {"channels", e.channels},
               {"size", e.size},
               {"device", e.device},
               {"threads", e.threads},
               {"steps_per_epoch", e.steps_per_epoch},
               {"total_steps", e.total_steps},
               {"resumed_at_step", e.resumed_at_step},
               {"out", e.out}};
  json["config"] = to_json(e.config);
  return json;
}

Json to_json(const StepEvent& e) {
  Json json = {{"event", "step"},
               {"epoch", e.epoch},
               {"step", e.step},
               {"step_in_epoch", e.step_in_epoch},
               {"loss", e.loss},
               {"accuracy", e.accuracy},
               {"lr", e.lr},
               {"grad_norm", e.grad_norm},
               {"images_per_s", e.images_per_s},
               {"allocated_bytes", e.allocated_bytes}};
  if (e.loss_scale) {
    json["loss_scale"] = *e.loss_scale;
    json["skipped"] = e.skipped;
  }
  return json;
}

Json to_json(const EpochEvent& e) {
  return {{"event", "epoch"},
          {"epoch", e.epoch},
          {"step", e.step},
          {"train_loss", e.train_loss},
          {"train_accuracy", e.train_accuracy},
          {"test_loss", e.test.loss},
          {"test_accuracy", e.test.accuracy()},
          {"images_per_s", e.images_per_s},
          {"seconds", e.seconds},
          {"test_seconds", e.test_seconds},
          {"peak_allocated_bytes", e.peak_allocated_bytes},
          {"peak_reserved_bytes", e.peak_reserved_bytes}};
}

Json to_json(const EndEvent& e) {
  return {{"event", "end"},
          {"ending", name_of(e.ending)},
          {"epoch", e.epoch},
          {"step", e.step},
          {"best_test_accuracy", or_null(e.best_test_accuracy)},
          {"test_accuracy", or_null(e.test_accuracy)},
          {"test_loss", or_null(e.test_loss)},
          {"images_per_s", e.images_per_s},
          {"seconds", e.seconds},
          {"peak_allocated_bytes", e.peak_allocated_bytes},
          {"peak_reserved_bytes", e.peak_reserved_bytes},
          {"out", e.out},
          {"files", e.files}};
}

void LineWriter::write(std::ostream& out, const Json& json) {
  out << to_text(json) << '\n';
  if (std::chrono::steady_clock::now() - flushed_ >= kFlushEvery) flush(out);
}

void LineWriter::flush(std::ostream& out) {
  out.flush();
  flushed_ = std::chrono::steady_clock::now();
}

void JsonSink::started(const StartEvent& event) {
  writer_.write(out_, to_json(event));
  flush();
}
void JsonSink::stepped(const StepEvent& event) { writer_.write(out_, to_json(event)); }
void JsonSink::epoch_saved(const EpochEvent& event) {
  writer_.write(out_, to_json(event));
  flush();
}
void JsonSink::ended(const EndEvent& event) {
  writer_.write(out_, to_json(event));
  flush();
}
void JsonSink::flush() { writer_.flush(out_); }

void MetricsFile::started(const StartEvent& event) {
  write_file_atomically(
      file_, earlier_.empty() ? std::string() : lines_up_to(earlier_, event.resumed_at_step, event.resumed_at_epoch));
  out_.open(file_, std::ios::app);
  if (!out_) throw IoError(fmt::format("{} cannot be opened for writing", file_), "check the folder's permissions");
}

void MetricsFile::check() const {
  if (!out_)
    throw IoError(fmt::format("{} cannot be written", file_),
                  "check the space left on the disk and the limit on the size of files (ulimit -f); the last saved "
                  "state is intact");
}

void MetricsFile::flush() {
  writer_.flush(out_);
  check();
}

void MetricsFile::stepped(const StepEvent& event) {
  writer_.write(out_, to_json(event));
  check();
}

void MetricsFile::epoch_done(const EpochEvent& event) {
  writer_.write(out_, to_json(event));
  flush();
}

}  // namespace cuttle::train
