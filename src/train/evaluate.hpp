#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "cuttle/data.hpp"
#include "cuttle/nn.hpp"

namespace cuttle::train {

/// An image that the model takes for something else.
struct Mistake {
  std::int64_t index = 0;  ///< in the set
  std::int64_t label = 0, predicted = 0;
  double probability = 0;  ///< given to `predicted`
};

struct Evaluation {
  std::int64_t images = 0, correct = 0, classes = 0;
  double loss = 0;                      ///< mean cross entropy
  std::vector<std::int64_t> confusion;  ///< [label * classes + predicted] = images
  std::vector<Mistake> worst;           ///< the most confident first, at most kWorst

  double accuracy() const { return images == 0 ? 0 : static_cast<double>(correct) / static_cast<double>(images); }
  std::int64_t count(std::int64_t label, std::int64_t predicted) const;
  std::int64_t labelled(std::int64_t label) const;      ///< images of this class
  std::int64_t predicted_as(std::int64_t label) const;  ///< images taken for this class
};

/// Mistakes that an evaluation keeps.
inline constexpr std::size_t kWorst = 36;

/// Runs the whole set through the module in evaluation mode, without history, and puts its mode back. Images come in
/// `dtype`; the next batches are queued while logits are on their way to the host.
/// Returns nothing if `stop` answered true between two batches. Throws ShapeError if the module does not give one
/// number for each class of the set.
std::optional<Evaluation> evaluate(nn::Module& module, const data::ImageSet& set, std::int64_t batch, Device device,
                                   DType dtype = DType::f32, const std::function<bool()>& stop = {});

}  // namespace cuttle::train
