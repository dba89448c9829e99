#pragma once
#include <memory>

#include "kernels.hpp"

namespace cuttle::train {

/// Starts to copy a tensor to the host without waiting for it. Where the backend cannot, the copy is complete at once.
std::unique_ptr<Readback> read_back(const Tensor& t);

}  // namespace cuttle::train
