#include "report/chart.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "report/html.hpp"

namespace cuttle::report {
namespace {

// In units of the viewBox, which the page scales to its width.
constexpr double kWidth = 640, kHeight = 290, kLeft = 58, kRight = 14, kTop = 12, kBottom = 40;
constexpr std::size_t kMostPoints = 400, kMostTitles = 120;

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();
  void include(double v) {
    low = std::min(low, v);
    high = std::max(high, v);
  }
  bool empty() const { return low > high; }
};

/// From values to places in the picture.
class Axes {
 public:
  explicit Axes(const Chart& chart) : logarithmic_(chart.logarithmic), x_max_(std::max(chart.x_max, 1e-9)) {
    for (const Series& s : chart.series) {
      for (const Point& p : s.points) {
        if (std::isfinite(p.y) && (!logarithmic_ || p.y > 0)) y_.include(p.y);
      }
    }
    if (y_.empty()) y_ = {logarithmic_ ? 0.1 : 0.0, 1.0};
    if (chart.from_zero) y_.low = 0;
    pad();
    if (chart.y_most != 0) y_.high = std::min(y_.high, chart.y_most);
  }

  double x(double v) const { return kLeft + v / x_max_ * (kWidth - kLeft - kRight); }
  double y(double v) const {
    const double share = (scale(std::clamp(v, y_.low, y_.high)) - scale(y_.low)) / (scale(y_.high) - scale(y_.low));
    return kHeight - kBottom - share * (kHeight - kTop - kBottom);
  }
  std::vector<double> x_ticks() const { return ticks(0, x_max_, 8); }
  std::vector<double> y_ticks() const { return logarithmic_ ? log_ticks(y_.low, y_.high) : ticks(y_.low, y_.high, 5); }

 private:
  double scale(double v) const { return logarithmic_ ? std::log(v) : v; }
  void pad() {
    if (logarithmic_) {
      y_ = {y_.low / 1.15, y_.high * 1.15};
      return;
    }
    const double room = y_.high > y_.low ? 0.06 * (y_.high - y_.low) : std::max(std::abs(y_.high) * 0.1, 1e-6);
    if (y_.low != 0) y_.low -= room;
    y_.high += room;
  }

  bool logarithmic_;
  double x_max_;
  Range y_;
};

std::string grid(const Chart& chart, const Axes& axes) {
  std::string svg;
  for (const double v : axes.y_ticks()) {
    const double y = axes.y(v);
    svg += fmt::format(R"(<line class="grid" x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>)", kLeft, kWidth - kRight, y, y);
    svg += fmt::format(R"(<text class="tick" x="{}" y="{:.1f}" text-anchor="end">{}</text>)", kLeft - 8, y + 4,
                       escape(chart.format_y(v)));
  }
  for (const double v : axes.x_ticks()) {
    svg += fmt::format(R"(<text class="tick" x="{:.1f}" y="{}" text-anchor="middle">{:g}</text>)", axes.x(v),
                       kHeight - kBottom + 18, v);
  }
  svg += fmt::format(R"(<line class="axis" x1="{}" x2="{}" y1="{}" y2="{}"/>)", kLeft, kWidth - kRight,
                     kHeight - kBottom, kHeight - kBottom);
  svg += fmt::format(R"(<text class="label" x="{}" y="{}" text-anchor="middle">{}</text>)",
                     (kLeft + kWidth - kRight) / 2, kHeight - 5, escape(chart.x_label));
  return svg;
}

std::string line(const Series& series, const Axes& axes) {
  std::string path;
  for (const Point& p : thinned(series.points, kMostPoints)) {
    if (std::isfinite(p.y)) path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", axes.x(p.x), axes.y(p.y));
  }
  return fmt::format(R"(<path class="line {}{}" d="{}"/>)", series.style, series.faint ? " faint" : "", path);
}

std::string titles(const Chart& chart, const Series& series, const Axes& axes) {
  std::string svg;
  for (const Point& p : thinned(series.points, kMostTitles)) {
    if (!std::isfinite(p.y)) continue;
    svg += fmt::format(
        R"(<circle class="{} {}" cx="{:.1f}" cy="{:.1f}" r="{}"><title>{} at {} {:.2f}: {}</title></circle>)",
        series.dots ? "dot" : "spot", series.style, axes.x(p.x), axes.y(p.y), series.dots ? 4 : 6, escape(series.name),
        escape(chart.x_label), p.x, escape(chart.format_y(p.y)));
  }
  return svg;
}

std::string legend(const Chart& chart) {
  std::string html;
  for (const Series& s : chart.series) {
    if (!s.faint) html += fmt::format(R"(<span class="key {}">{}</span>)", s.style, escape(s.name));
  }
  return html;
}

}  // namespace

std::string to_html(const Chart& chart) {
  const Axes axes(chart);
  std::string svg = grid(chart, axes);
  for (const Series& s : chart.series) svg += line(s, axes);
  for (const Series& s : chart.series) {
    if (!s.faint) svg += titles(chart, s, axes);
  }
  return fmt::format(R"(<figure class="chart"><figcaption><b>{0}</b><span>{1}</span></figcaption>)"
                     R"(<svg viewBox="0 0 {2} {3}" role="img" aria-label="{0}">{4}</svg></figure>)",
                     escape(chart.title), legend(chart), kWidth, kHeight, svg);
}

std::vector<Point> thinned(const std::vector<Point>& points, std::size_t count) {
  if (points.size() <= count) return points;
  std::vector<Point> result(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t begin = i * points.size() / count, end = (i + 1) * points.size() / count;
    for (std::size_t j = begin; j < end; ++j) {
      result[i].x += points[j].x / static_cast<double>(end - begin);
      result[i].y += points[j].y / static_cast<double>(end - begin);
    }
  }
  return result;
}

std::vector<Point> smoothed(const std::vector<Point>& points, double span) {
  const double keep = span > 1 ? 1 - 1 / span : 0;
  std::vector<Point> result;
  double sum = 0, weight = 0;
  for (const Point& p : points) {
    sum = keep * sum + p.y;
    weight = keep * weight + 1;
    result.push_back({p.x, sum / weight});
  }
  return result;
}

std::vector<double> ticks(double low, double high, int count) {
  const double raw = (high - low) / count, power = std::pow(10.0, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (factor * power >= raw * (1 - 1e-9)) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> result;
  const double tolerance = 1e-9 * step;
  for (double k = std::ceil((low - tolerance) / step); k * step <= high + tolerance; ++k) {
    result.push_back(k * step + 0.0);  // -0 would be written as such
  }
  return result;
}

std::vector<double> log_ticks(double low, double high) {
  const int first = static_cast<int>(std::floor(std::log10(low))), last = static_cast<int>(std::ceil(std::log10(high)));
  const bool few_decades = high < 500 * low;
  std::vector<double> result;
  for (int exponent = first; exponent <= last; ++exponent) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double v = factor * std::pow(10.0, exponent);
      if (v >= low && v <= high && (factor == 1.0 || few_decades)) result.push_back(v);
    }
  }
  return result;
}

}  // namespace cuttle::report
