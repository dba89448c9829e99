#pragma once

namespace cuttle {

/// What set_num_threads() takes at most.
inline constexpr int kMostThreads = 1024;

}  // namespace cuttle
