#pragma once
#include <cstdint>
#include <vector>

#include "cuttle/data.hpp"
#include "data/raw_batch.hpp"
#include "data/workers.hpp"

namespace cuttle::data {

/// Fills batches in host memory with images of a set, in threads of its own. Nothing but seed, epoch and indices
/// decides the result.
class Gatherer {
 public:
  /// The set must outlive it. Of the options it takes num_workers, seed, crop_flip and transform.
  Gatherer(const ImageSet& set, const LoaderOptions& options);

  /// Begins a batch in memory that the calling thread allocates, giving up the one before.
  void start(std::int64_t epoch, std::vector<std::int64_t> indices);
  /// The batch that was begun, complete. Throws what the transform has thrown.
  RawBatch finish();

 private:
  void fill(std::size_t begin, std::size_t end);

  const ImageSet& set_;
  ImageTransform transform_;
  bool moves_;
  std::uint64_t seed_;
  std::int64_t epoch_ = 0;
  std::vector<std::int64_t> indices_;
  RawBatch batch_;
  Workers workers_;  // last: they must end before the batch goes
};

}  // namespace cuttle::data
