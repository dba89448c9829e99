#include "cuttle/matmul.hpp"

#include <atomic>

namespace cuttle {
namespace {

std::atomic<MatmulSettings> current;

}  // namespace

MatmulSettings matmul_settings() { return current; }
void set_matmul_settings(const MatmulSettings& settings) { current = settings; }

}  // namespace cuttle
