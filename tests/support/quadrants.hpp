#pragma once
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "cuttle/data.hpp"
#include "cuttle/random.hpp"

namespace cuttle::test {

/// Images of 8x8 with one bright quadrant, whose number is the class, under noise: learnt within a few steps.
inline data::ImageSet quadrants(std::int64_t count, std::uint64_t seed = 0) {
  data::ImageSet set;
  set.name = "quadrants";
  set.channels = 1;
  set.height = set.width = 8;
  set.classes = {"upper left", "upper right", "lower left", "lower right"};
  set.mean = {0.25F};
  set.stddev = {0.25F};
  for (std::int64_t i = 0; i < count; ++i) {
    const auto words = philox4x32(seed, kStreamSynthetic, static_cast<std::uint64_t>(i));
    const std::int64_t label = words[0] % 4;
    set.labels.push_back(label);
    for (std::int64_t p = 0; p < 64; ++p) {
      const bool bright = p / 32 == label / 2 && p % 8 / 4 == label % 2;
      const auto noise =
          static_cast<int>(philox4x32(seed + 1, kStreamSynthetic, static_cast<std::uint64_t>(i * 64 + p))[0] % 60);
      set.pixels.push_back(static_cast<std::uint8_t>((bright ? 150 : 20) + noise));
    }
  }
  return set;
}

/// A folder of its own, removed with everything in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "cuttle-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace cuttle::test
