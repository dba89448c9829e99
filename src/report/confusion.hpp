#pragma once
#include <string>
#include <vector>

#include "cuttle/data.hpp"
#include "train/evaluate.hpp"

namespace cuttle::report {

/// A heat table of true against predicted class; above 40 classes, which no page shows, the pairs most often confused.
std::string confusion_html(const train::Evaluation& test, const std::vector<std::string>& classes);
/// The most confident wrong answers, as pictures with both classes and the probability.
std::string mistakes_html(const train::Evaluation& test, const data::ImageSet& set);

}  // namespace cuttle::report
