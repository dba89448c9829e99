#include "cuttle/random.hpp"

namespace cuttle {

PhiloxKey Generator::reserve(std::int64_t elements) {
  const PhiloxKey key = key_;
  key_.offset += (static_cast<std::uint64_t>(elements) + 3) / 4;
  return key;
}

Generator& default_generator() {
  thread_local Generator generator(0, kStreamOps);
  return generator;
}

Generator& init_generator() {
  thread_local Generator generator(0, kStreamInit);
  return generator;
}

void manual_seed(std::uint64_t seed) {
  default_generator() = Generator(seed, kStreamOps);
  init_generator() = Generator(seed, kStreamInit);
}

}  // namespace cuttle
