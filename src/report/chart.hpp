#pragma once
#include <functional>
#include <string>
#include <vector>

namespace cuttle::report {

struct Point {
  double x = 0, y = 0;
};

struct Series {
  std::string name;
  std::string style;  ///< CSS class that gives the colour: "train", "test"...
  std::vector<Point> points;
  bool dots = false;   ///< a mark at each point
  bool faint = false;  ///< background of a smoothed line; not in the legend
};

struct Chart {
  std::string title, x_label;
  std::vector<Series> series = {};
  std::function<std::string(double)> format_y = {};
  double x_max = 1;
  bool from_zero = false;    ///< the y axis begins at 0
  bool logarithmic = false;  ///< y axis; asks for positive values
  double y_most = 0;         ///< if not 0: the y axis ends here at most
};

/// One figure of HTML with an SVG picture that needs nothing else: axes, lines, legend, and a title at each point that
/// the pointer passes.
std::string to_html(const Chart& chart);

/// At most `count` points: means over neighbours.
std::vector<Point> thinned(const std::vector<Point>& points, std::size_t count);
/// Exponential moving average over about `span` points, without the bias towards the first.
std::vector<Point> smoothed(const std::vector<Point>& points, double span);

/// Round values that divide [low, high] into about `count` parts; all within it.
std::vector<double> ticks(double low, double high, int count);
/// 1, 2 and 5 times powers of ten within [low, high]; powers alone where those would be many.
std::vector<double> log_ticks(double low, double high);

}  // namespace cuttle::report
