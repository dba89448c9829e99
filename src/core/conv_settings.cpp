#include <mutex>

#include "cuttle/conv.hpp"

namespace cuttle {
namespace {

std::mutex mutex;
ConvSettings current;

}  // namespace

ConvSettings conv_settings() {
  const std::lock_guard lock(mutex);
  return current;
}

void set_conv_settings(const ConvSettings& settings) {
  const std::lock_guard lock(mutex);
  current = settings;
}

}  // namespace cuttle
