#include "report/confusion.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/html.hpp"

namespace cuttle::report {
namespace {

constexpr std::int64_t kWidestTable = 40;
constexpr std::size_t kPairs = 20;

struct Pair {
  std::int64_t label = 0, predicted = 0, count = 0;
};

/// Confused pairs, the most frequent first.
std::vector<Pair> confused_pairs(const train::Evaluation& test) {
  std::vector<Pair> pairs;
  for (std::int64_t label = 0; label < test.classes; ++label) {
    for (std::int64_t predicted = 0; predicted < test.classes; ++predicted) {
      const std::int64_t n = test.count(label, predicted);
      if (n > 0 && label != predicted) pairs.push_back({label, predicted, n});
    }
  }
  std::stable_sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) { return a.count > b.count; });
  return pairs;
}

const std::string& name(const std::vector<std::string>& classes, std::int64_t k) {
  return classes.at(static_cast<std::size_t>(k));
}

std::string cell(const train::Evaluation& test, const std::vector<std::string>& classes, std::int64_t label,
                 std::int64_t predicted, std::int64_t most_confused) {
  const std::int64_t n = test.count(label, predicted);
  if (n == 0) return R"(<td class="none">·</td>)";
  const double share = static_cast<double>(n) / static_cast<double>(test.labelled(label));
  const bool right = label == predicted;
  // Errors are few beside hits: they have a scale of their own, by the root so that single ones can be seen.
  const double heat =
      right ? 0.15 + 0.8 * share : 0.12 + 0.75 * std::sqrt(static_cast<double>(n) / static_cast<double>(most_confused));
  return fmt::format(R"(<td class="{}{}" style="--v:{:.2f}" title="{} taken for {}: {} images, {:.2f}%">{}</td>)",
                     right ? "right" : "wrong", heat > 0.6 ? " strong" : "", heat, escape(name(classes, label)),
                     escape(name(classes, predicted)), n, 100 * share, n);
}

std::string table(const train::Evaluation& test, const std::vector<std::string>& classes, std::int64_t most_confused) {
  std::string html = R"(<table class="confusion"><tr><th>true ↓ predicted →</th>)";
  for (const std::string& c : classes) html += fmt::format("<th>{}</th>", escape(c));
  html += "<th>recall</th></tr>\n";
  for (std::int64_t label = 0; label < test.classes; ++label) {
    html += fmt::format("<tr><th>{}</th>", escape(name(classes, label)));
    for (std::int64_t predicted = 0; predicted < test.classes; ++predicted) {
      html += cell(test, classes, label, predicted, most_confused);
    }
    const std::int64_t images = test.labelled(label);
    html += images == 0 ? std::string("<th>–</th>")
                        : fmt::format("<th>{:.2f}%</th>", 100.0 * static_cast<double>(test.count(label, label)) /
                                                              static_cast<double>(images));
    html += "</tr>\n";
  }
  return html + "</table>";
}

std::string pair_list(const std::vector<Pair>& pairs, const std::vector<std::string>& classes) {
  std::string html = R"(<table class="rows"><tr><th>true</th><th>predicted</th><th>images</th></tr>)";
  for (const Pair& p : pairs) {
    html += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td></tr>\n", escape(name(classes, p.label)),
                        escape(name(classes, p.predicted)), p.count);
  }
  return html + "</table>";
}

std::string picture_url(const data::ImageSet& set, std::int64_t index) {
  const auto pixels = set.image(index);
  const std::vector<std::uint8_t> png =
      data::encode_png({set.height, set.width, set.channels, {pixels.begin(), pixels.end()}});
  return "data:image/png;base64," + base64(png);
}

}  // namespace

std::string confusion_html(const train::Evaluation& test, const std::vector<std::string>& classes) {
  std::vector<Pair> pairs = confused_pairs(test);
  const std::int64_t most = pairs.empty() ? 1 : pairs.front().count;
  std::string content;
  if (test.classes <= kWidestTable) {
    content = table(test, classes, most);
  } else {
    pairs.resize(std::min(pairs.size(), kPairs));
    content = pair_list(pairs, classes);
  }
  return fmt::format(
      "<h2>What is taken for what</h2>\n<p class=\"note\">{} of {} test images are classified wrongly.</p>\n"
      "<div class=\"panel\">{}</div>\n",
      test.images - test.correct, test.images, content);
}

std::string mistakes_html(const train::Evaluation& test, const data::ImageSet& set) {
  if (test.worst.empty()) return {};
  std::string html =
      "<h2>Worst mistakes</h2>\n<p class=\"note\">Wrong answers that the model was surest of.</p>\n<div "
      "class=\"mistakes\">\n";
  for (const train::Mistake& m : test.worst) {
    html += fmt::format(
        R"(<figure title="test image {}"><img alt="" src="{}"><figcaption><b class="good">{}</b> taken for )"
        R"(<b class="bad">{}</b><span>{:.1f}% sure</span></figcaption></figure>)",
        m.index, picture_url(set, m.index), escape(name(set.classes, m.label)), escape(name(set.classes, m.predicted)),
        100 * m.probability);
    html += '\n';
  }
  return html + "</div>\n";
}

}  // namespace cuttle::report
