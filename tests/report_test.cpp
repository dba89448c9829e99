#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <string>

#include "report/chart.hpp"
#include "report/confusion.hpp"
#include "report/html.hpp"
#include "report/report.hpp"
#include "support/quadrants.hpp"

namespace {

using namespace cuttle;
using namespace cuttle::report;
using cuttle::test::quadrants;
using cuttle::test::TemporaryFolder;

std::string base64_of(const std::string& text) {
  return base64({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

train::Evaluation example_test(const data::ImageSet& set) {
  train::Evaluation e;
  e.classes = static_cast<std::int64_t>(set.classes.size());
  e.confusion.assign(static_cast<std::size_t>(e.classes * e.classes), 0);
  e.confusion[0] = 7;
  e.confusion[1] = 3;  // class 0 taken for 1
  e.images = 10;
  e.correct = 7;
  e.loss = 0.4321;
  e.worst = {{2, 0, 1, 0.987}};
  return e;
}

Report example_report(const data::ImageSet& set) {
  Report r;
  r.start.config.model = "lenet";
  r.start.data_name = set.name;
  r.start.steps_per_epoch = 10;
  r.start.parameters = 421642;
  for (std::int64_t i = 1; i <= 20; ++i) {
    r.history.steps.push_back({i, 2.0 / static_cast<double>(i), 0.5, 0.01, 1000});
  }
  r.history.epochs = {{1, 10, 0.5, 0.8, 0.4, 0.85, 1000, 1, 1 << 20}, {2, 20, 0.3, 0.9, 0.2, 0.95, 2000, 3, 1 << 20}};
  r.test = example_test(set);
  r.test_set = &set;
  return r;
}

}  // namespace

TEST_CASE("base64 gives the vectors of RFC 4648") {
  CHECK(base64_of("") == "");
  CHECK(base64_of("f") == "Zg==");
  CHECK(base64_of("fo") == "Zm8=");
  CHECK(base64_of("foo") == "Zm9v");
  CHECK(base64_of("foobar") == "Zm9vYmFy");
  CHECK(base64_of("\xff\xfe\xfd") == "//79");
}

TEST_CASE("ticks are round and stay within the axis") {
  CHECK(ticks(0, 2, 8) == std::vector<double>{0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2});
  CHECK(ticks(0, 90, 8).size() == 5);  // every 20
  for (const double v : ticks(0.913, 0.987, 5)) {
    CHECK(v >= 0.913);
    CHECK(v <= 0.987);
  }
  CHECK(log_ticks(0.03, 0.6) == std::vector<double>{0.05, 0.1, 0.2, 0.5});
  CHECK(log_ticks(1e-6, 2).size() == 7);
}

TEST_CASE("thinning and smoothing keep what they should") {
  std::vector<Point> points;
  for (int i = 0; i < 1000; ++i) points.push_back({static_cast<double>(i), 3.0});
  const std::vector<Point> few = thinned(points, 64);
  CHECK(few.size() == 64);
  CHECK(few.front().x < few.back().x);
  for (const Point& p : few) CHECK(p.y == doctest::Approx(3.0));
  for (const Point& p : smoothed(points, 20)) CHECK(p.y == doctest::Approx(3.0));
  CHECK(smoothed({{0, 1}, {1, 3}}, 2).back().y == doctest::Approx((0.5 * 1 + 3) / 1.5));
  CHECK(thinned({{0, 1}}, 64).size() == 1);
}

TEST_CASE("the report needs nothing from elsewhere and shows the figures") {
  const data::ImageSet set = quadrants(10);
  const std::string html = to_html(example_report(set));
  CHECK(html.find("http") == std::string::npos);
  CHECK(html.find("<script") == std::string::npos);
  CHECK(html.find("@import") == std::string::npos);
  CHECK(count(html, "src=\"") == count(html, "src=\"data:image/png;base64,"));
  CHECK(count(html, "<svg") == 4);
  CHECK(html.find("nan") == std::string::npos);
  CHECK(html.find("inf\"") == std::string::npos);
  CHECK(html.find("70.00%") != std::string::npos);  // test accuracy
  CHECK(html.find("95.00%") != std::string::npos);  // best
  CHECK(html.find("421,642") != std::string::npos);
  CHECK(html.find("1,750") != std::string::npos);  // images per second: 7000 in 4 s
  CHECK(html.find("upper left taken for upper right: 3 images, 30.00%") != std::string::npos);
  CHECK(html.find("98.7% sure") != std::string::npos);
  CHECK(html.find("3 of 10 test images") != std::string::npos);
}

TEST_CASE("a report of a run without a single step is a page all the same") {
  Report r;
  r.start.config.model = "lenet";
  const std::string html = to_html(r);
  CHECK(html.find("</html>") != std::string::npos);
  CHECK(html.find("nan") == std::string::npos);
}

TEST_CASE("names of classes cannot break the page") {
  data::ImageSet set = quadrants(10);
  set.classes[1] = "<b>\"&'";
  const std::string html = to_html(example_report(set));
  CHECK(html.find("<b>\"&'") == std::string::npos);
  CHECK(html.find("&lt;b&gt;&quot;&amp;&#39;") != std::string::npos);
}

TEST_CASE("with many classes the confused pairs are listed, the most frequent first") {
  train::Evaluation e;
  e.classes = 100;
  e.confusion.assign(10000, 0);
  e.confusion[5 * 100 + 6] = 2;
  e.confusion[7 * 100 + 8] = 9;
  std::vector<std::string> names;
  for (int k = 0; k < 100; ++k) names.push_back("class" + std::to_string(k));
  const std::string html = confusion_html(e, names);
  CHECK(html.find("<td>class7</td><td>class8</td><td>9</td>") < html.find("<td>class5</td><td>class6</td><td>2</td>"));
  CHECK(html.find("class50") == std::string::npos);
}

TEST_CASE("history reads the events of metrics.jsonl and passes over the rest") {
  const TemporaryFolder folder;
  const std::string file = folder / "metrics.jsonl";
  std::ofstream(file) << R"({"event":"step","step":1,"loss":2.5,"lr":0.1,"accuracy":0.25,"images_per_s":10})"
                      << "\n"
                      << R"({"event":"step","step":2,"loss":null})"
                      << "\n"
                      << "torn {\n"
                      << R"({"event":"epoch","epoch":1,"step":2,"test_accuracy":0.75,"seconds":3})"
                      << "\n";
  const History history = read_history(file);
  REQUIRE(history.steps.size() == 2);
  CHECK(history.steps[0].loss == 2.5);
  CHECK(history.steps[1].step == 2);
  REQUIRE(history.epochs.size() == 1);
  CHECK(history.epochs[0].test_accuracy == 0.75);
  CHECK(read_history(folder / "missing").steps.empty());
}
