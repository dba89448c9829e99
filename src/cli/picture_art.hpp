#pragma once
#include <string>

#include "cuttle/data.hpp"

namespace cuttle::cli {

/// A grey picture as text, two rows of pixels a line of half blocks: with 24 shades where the terminal has colours,
/// else black and white. Colour pictures are drawn by their luma.
std::string draw(const data::Picture& picture, bool colours);

}  // namespace cuttle::cli
