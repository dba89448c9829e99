#pragma once
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace cuttle::cuda {

/// One candidate of a search. Milliseconds of the host's clock, but for the convolution's own time.
struct SearchTrial {
  std::string name;
  double build_ms = 0;  ///< of the plan
  double first_ms = 0;  ///< the first run, in which the driver loads the kernels
  double timing_ms = 0;
  double run_us = 0;  ///< the median of the device's clock
  std::size_t workspace_bytes = 0;
  bool is_compiled_at_runtime = false;
  std::string reason = {};  ///< why it was not timed; empty if it was
};

/// What a search for the fastest algorithm did, and what that took.
struct SearchRecord {
  std::string key;
  double floor_us = 0;    ///< what the card cannot beat; 0 if it is not known
  double scratch_ms = 0;  ///< memory for the output
  double query_ms = 0;    ///< asking the heuristics
  double total_ms = 0;
  std::vector<SearchTrial> trials;  ///< in the order of trying
  std::string chosen;
};

/// For benchmarks: every search is reported, and goes on to its last candidate if `to_the_end`. By one thread, before
/// the first search.
struct SearchWatch {
  bool to_the_end = false;
  std::function<void(const SearchRecord&)> seen = {};
};
SearchWatch& search_watch();

}  // namespace cuttle::cuda
