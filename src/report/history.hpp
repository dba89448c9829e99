#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace cuttle::report {

/// The figures of a run over time, as metrics.jsonl holds them.
struct History {
  struct Step {
    std::int64_t step = 0;
    double loss = 0, accuracy = 0, lr = 0, images_per_s = 0;
  };
  struct Epoch {
    std::int64_t epoch = 0, step = 0;
    double train_loss = 0, train_accuracy = 0, test_loss = 0, test_accuracy = 0;
    double images_per_s = 0, seconds = 0;
    std::uint64_t peak_allocated_bytes = 0;
  };
  std::vector<Step> steps;
  std::vector<Epoch> epochs;
};

/// Lines that are no event are passed over; a missing file gives an empty history.
History read_history(const std::string& metrics_file);

}  // namespace cuttle::report
