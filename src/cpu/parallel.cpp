#include "cpu/parallel.hpp"

#include <thread>

#include "cuttle/device.hpp"

namespace cuttle {

namespace {
int threads = 0;
}

void set_num_threads(int n) { threads = n; }
int num_threads() { return threads > 0 ? threads : static_cast<int>(std::thread::hardware_concurrency()); }

namespace cpu::detail {

void parallel_for(std::int64_t n, std::int64_t, void (*body)(void*, std::int64_t, std::int64_t), void* context) {
  if (n > 0) body(context, 0, n);
}

}  // namespace cpu::detail
}  // namespace cuttle
