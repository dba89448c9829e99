#include "report/report.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/text.hpp"
#include "io/atomic_file.hpp"
#include "report/chart.hpp"
#include "report/confusion.hpp"
#include "report/html.hpp"

namespace cuttle::report {
namespace {

std::string as_percent(double v) { return fmt::format("{:.4g}%", 100 * v); }
std::string as_number(double v) { return fmt::format("{:.3g}", v); }
std::string as_count(double v) { return human_count(static_cast<std::int64_t>(v)); }

std::string tile(const std::string& value, const std::string& label) {
  return fmt::format("<div class=\"tile\"><b>{}</b><span>{}</span></div>\n", escape(value), escape(label));
}

std::string tiles(const Report& r) {
  std::string html = "<div class=\"tiles\">\n";
  if (r.test) {
    html += tile(fmt::format("{:.2f}%", 100 * r.test->accuracy()), "test accuracy");
    html += tile(fmt::format("{:.4f}", r.test->loss), "test loss");
  }
  double best = 0, seconds = 0, images = 0;
  std::uint64_t peak = 0;
  for (const History::Epoch& e : r.history.epochs) {
    best = std::max(best, e.test_accuracy);
    seconds += e.seconds;
    images += e.images_per_s * e.seconds;
    peak = std::max(peak, e.peak_allocated_bytes);
  }
  if (!r.history.epochs.empty()) {
    html += tile(fmt::format("{:.2f}%", 100 * best), "best test accuracy");
    html += tile(human_duration(seconds), "training time");
    if (seconds > 0) html += tile(as_count(images / seconds), "images per second");
    html += tile(format_bytes(peak), "peak memory");
  }
  return html + "</div>\n";
}

/// Charts have epochs on their x axis, also within an epoch.
template <class Record, class Value>
std::vector<Point> points_of(const std::vector<Record>& records, std::int64_t steps_per_epoch, Value value) {
  std::vector<Point> points;
  points.reserve(records.size());
  for (const Record& r : records) {
    points.push_back(
        {static_cast<double>(r.step) / static_cast<double>(std::max<std::int64_t>(1, steps_per_epoch)), value(r)});
  }
  return points;
}

double largest_over_smallest(const std::vector<Point>& points) {
  double low = 0, high = 0;
  for (const Point& p : points) {
    if (p.y <= 0) continue;
    low = low == 0 ? p.y : std::min(low, p.y);
    high = std::max(high, p.y);
  }
  return low > 0 ? high / low : 1;
}

Chart learning_chart(const std::string& title, std::vector<Point> train, std::vector<Point> test) {
  const double span = std::max(8.0, static_cast<double>(train.size()) / 40);
  Chart chart{.title = title, .x_label = "epoch"};
  chart.series.push_back({"each step", "train", train, false, true});
  chart.series.push_back({"training", "train", smoothed(train, span)});
  chart.series.push_back({"test", "test", std::move(test), true});
  return chart;
}

std::string charts(const Report& r) {
  const std::int64_t per_epoch = r.start.steps_per_epoch;
  const std::vector<History::Step>& steps = r.history.steps;
  const std::vector<History::Epoch>& epochs = r.history.epochs;
  const auto step_points = [&](auto value) { return points_of(steps, per_epoch, value); };
  const auto epoch_points = [&](auto value) { return points_of(epochs, per_epoch, value); };

  std::vector<Point> loss = step_points([](const History::Step& s) { return s.loss; });
  Chart losses = learning_chart("Loss", loss, epoch_points([](const History::Epoch& e) { return e.test_loss; }));
  losses.format_y = as_number;
  losses.logarithmic = largest_over_smallest(loss) > 10;

  Chart accuracy = learning_chart("Accuracy", step_points([](const History::Step& s) { return s.accuracy; }),
                                  epoch_points([](const History::Epoch& e) { return e.test_accuracy; }));
  accuracy.format_y = as_percent;
  accuracy.y_most = 1;

  Chart speed{.title = "Images per second", .x_label = "epoch"};
  speed.series.push_back(
      {"since the epoch began", "speed", step_points([](const History::Step& s) { return s.images_per_s; })});
  speed.format_y = as_count;
  speed.from_zero = true;

  Chart rate{.title = "Learning rate", .x_label = "epoch"};
  rate.series.push_back({"learning rate", "rate", step_points([](const History::Step& s) { return s.lr; })});
  rate.format_y = as_number;
  rate.from_zero = true;

  std::string html = "<div class=\"charts\">\n";
  const double x_max =
      steps.empty() || per_epoch == 0 ? 1 : static_cast<double>(steps.back().step) / static_cast<double>(per_epoch);
  for (Chart* chart : {&losses, &accuracy, &speed, &rate}) {
    chart->x_max = x_max;
    html += to_html(*chart) + '\n';
  }
  return html + "</div>\n";
}

std::string epoch_table(const History& history) {
  if (history.epochs.empty()) return {};
  std::string html =
      "<h2>Epochs</h2>\n<div class=\"panel\"><table class=\"rows\"><tr><th>epoch</th><th>training loss</th>"
      "<th>training accuracy</th><th>test loss</th><th>test accuracy</th><th>images/s</th><th>seconds</th></tr>\n";
  for (const History::Epoch& e : history.epochs) {
    html += fmt::format(
        "<tr><td>{}</td><td>{:.4f}</td><td>{:.2f}%</td><td>{:.4f}</td><td>{:.2f}%</td><td>{}</td>"
        "<td>{:.1f}</td></tr>\n",
        e.epoch, e.train_loss, 100 * e.train_accuracy, e.test_loss, 100 * e.test_accuracy, as_count(e.images_per_s),
        e.seconds);
  }
  return html + "</table></div>\n";
}

std::string settings(const Report& r) {
  std::string html = "<h2>Settings</h2>\n<div class=\"panel\"><dl class=\"settings\">\n";
  nlohmann::ordered_json values = train::to_json(r.start.config);
  values["threads"] = r.start.threads;
  values["device"] = r.start.device;
  for (const auto& [key, value] : values.items()) {
    const std::string text = value.is_string() ? value.get<std::string>()
                             : value.is_array()
                                 ? fmt::format("{}", fmt::join(value.get<std::vector<std::string>>(), ", "))
                                 : value.dump();
    if (!text.empty()) html += fmt::format("<div><dt>{}</dt><dd>{}</dd></div>\n", escape(key), escape(text));
  }
  return html + "</dl></div>\n";
}

}  // namespace

std::string to_html(const Report& r) {
  const std::string title = fmt::format("{} on {}", r.start.config.model, r.start.data_name);
  std::string body = fmt::format(
      "<h1>{}</h1>\n<p class=\"note\">{} parameters; {} training and {} test images of {}x{}x{}, {} classes; {} on "
      "{}</p>\n",
      escape(title), human_count(r.start.parameters), human_count(r.start.train_images),
      human_count(r.start.test_images), r.start.channels, r.start.size, r.start.size, r.start.classes,
      name_of(r.start.config.precision), escape(r.start.device));
  body += tiles(r) + charts(r) + epoch_table(r.history);
  if (r.test && r.test_set) {
    body += confusion_html(*r.test, r.test_set->classes) + mistakes_html(*r.test, *r.test_set);
  }
  body += settings(r);
  return page(title, body);
}

ReportSink::ReportSink(std::string file, std::string metrics_file, const data::ImageSet& test_set)
    : file_(std::move(file)), metrics_file_(std::move(metrics_file)), test_set_(test_set) {}

void ReportSink::started(const train::StartEvent& event) { start_ = event; }

void ReportSink::epoch_saved(const train::EpochEvent& event) {
  test_ = event.test;
  write();
}

void ReportSink::ended(const train::EndEvent& event) {
  if (event.test) test_ = event.test;
  write();
}

void ReportSink::write() const {
  write_file_atomically(file_, to_html({start_, read_history(metrics_file_), test_, &test_set_}));
}

}  // namespace cuttle::report
