#pragma once
#include <cstdint>

namespace cuttle::data {

/// Batches in an epoch. The last is what is left; a single image is too few for batch norm, so it joins the batch
/// before it.
inline std::int64_t batch_count(std::int64_t images, std::int64_t batch) {
  const std::int64_t whole = images / batch, rest = images % batch;
  const bool joins = rest == 1 && whole > 0;
  return whole + (rest > 0 && !joins ? 1 : 0);
}

}  // namespace cuttle::data
