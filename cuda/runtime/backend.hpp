#pragma once
#include <cstddef>
#include <functional>
#include <memory>

#include "kernels.hpp"

/// The parts of Backend that are no kernels; kernels.hpp says what each does.
namespace cuttle::cuda {

void synchronize(int index);
void copy(void* to, Device to_device, const void* from, Device from_device, std::size_t bytes);
std::unique_ptr<Upload> upload(const Tensor& to, const void* from);
std::unique_ptr<Readback> read_back(const Tensor& t);
std::unique_ptr<CapturedWork> capture(int index, const std::function<void()>& work);

}  // namespace cuttle::cuda
