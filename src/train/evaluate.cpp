#include "train/evaluate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <span>

#include "cuttle/autograd.hpp"
#include "cuttle/error.hpp"
#include "train/read_back.hpp"

namespace cuttle::train {
namespace {

/// Batches whose logits may be under way: enough to keep the device busy.
constexpr std::size_t kMostUnderWay = 4;

class EvalMode {
 public:
  explicit EvalMode(nn::Module& module) : module_(module), before_(module.training()) { module_.eval(); }
  ~EvalMode() { module_.train(before_); }
  EvalMode(const EvalMode&) = delete;
  EvalMode& operator=(const EvalMode&) = delete;

 private:
  nn::Module& module_;
  bool before_;
};

double log_sum_exp(std::span<const float> row) {
  const double largest = *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const float x : row) sum += std::exp(x - largest);
  return largest + std::log(sum);
}

void keep_worst(std::vector<Mistake>& worst, const Mistake& mistake) {
  const auto place = std::find_if(worst.begin(), worst.end(),
                                  [&](const Mistake& other) { return mistake.probability > other.probability; });
  if (place == worst.end() && worst.size() >= kWorst) return;
  worst.insert(place, mistake);
  if (worst.size() > kWorst) worst.pop_back();
}

void count_image(Evaluation& result, std::int64_t index, std::span<const float> logits, std::int64_t label) {
  const std::int64_t predicted = std::max_element(logits.begin(), logits.end()) - logits.begin();
  const double total = log_sum_exp(logits);
  result.loss += total - logits[static_cast<std::size_t>(label)];
  ++result.images;
  ++result.confusion[static_cast<std::size_t>(label * result.classes + predicted)];
  if (predicted == label) {
    ++result.correct;
  } else {
    keep_worst(result.worst, {index, label, predicted, std::exp(logits[static_cast<std::size_t>(predicted)] - total)});
  }
}

}  // namespace

std::int64_t Evaluation::count(std::int64_t label, std::int64_t predicted) const {
  return confusion.at(static_cast<std::size_t>(label * classes + predicted));
}

std::int64_t Evaluation::labelled(std::int64_t label) const {
  std::int64_t sum = 0;
  for (std::int64_t k = 0; k < classes; ++k) sum += count(label, k);
  return sum;
}

std::int64_t Evaluation::predicted_as(std::int64_t label) const {
  std::int64_t sum = 0;
  for (std::int64_t k = 0; k < classes; ++k) sum += count(k, label);
  return sum;
}

namespace {

/// Logits on their way to the host.
struct UnderWay {
  std::unique_ptr<Readback> logits;
  std::vector<std::int64_t> indices;
};

void count_batch(Evaluation& result, const data::ImageSet& set, const UnderWay& batch) {
  const auto k = static_cast<std::size_t>(result.classes);
  const std::span values(static_cast<const float*>(batch.logits->wait()), batch.indices.size() * k);
  for (std::size_t i = 0; i < batch.indices.size(); ++i) {
    const std::int64_t label = set.labels[static_cast<std::size_t>(batch.indices[i])];
    count_image(result, batch.indices[i], values.subspan(i * k, k), label);
  }
}

}  // namespace

std::optional<Evaluation> evaluate(nn::Module& module, const data::ImageSet& set, std::int64_t batch, Device device,
                                   DType dtype, const std::function<bool()>& stop) {
  const NoGrad no_grad;
  const EvalMode eval_mode(module);
  const data::Loader loader(set, {.batch = std::min(batch, set.size()), .device = device, .dtype = dtype});
  Evaluation result;
  result.classes = static_cast<std::int64_t>(set.classes.size());
  result.confusion.assign(static_cast<std::size_t>(result.classes * result.classes), 0);
  std::deque<UnderWay> under_way;
  const auto count_first = [&] {
    count_batch(result, set, under_way.front());
    under_way.pop_front();
  };
  for (std::int64_t b = 0; b < loader.batches(); ++b) {
    if (stop && stop()) return std::nullopt;
    const Tensor logits = module(loader.load(0, b).images);
    if (logits.rank() != 2 || logits.size(1) != result.classes) {
      throw ShapeError(
          fmt::format("the model gives {}, but '{}' has {} classes", logits.str(), set.name, result.classes),
          "evaluate on the data that the model was trained for");
    }
    under_way.push_back({read_back(logits.to(DType::f32)), loader.indices(0, b)});
    if (under_way.size() > kMostUnderWay) count_first();
  }
  while (!under_way.empty()) count_first();
  result.loss /= static_cast<double>(result.images);
  return result;
}

}  // namespace cuttle::train
