#include "cuda/runtime/virtual_memory.hpp"

#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>

#include "cuttle/error.hpp"

namespace cuttle::cuda {

namespace {

/// The driver's library is found at run time, as the runtime finds it: a machine without a driver runs the program too.
struct Driver {
  decltype(&cuGetErrorName) error_name = nullptr;
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) unreserve = nullptr;
  decltype(&cuMemCreate) create = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  bool ready = false;

  Driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) return;
    load(library, "cuGetErrorName", error_name);
    load(library, "cuMemGetAllocationGranularity", granularity);
    load(library, "cuMemAddressReserve", reserve);
    load(library, "cuMemAddressFree", unreserve);
    load(library, "cuMemCreate", create);
    load(library, "cuMemRelease", release);
    load(library, "cuMemMap", map);
    load(library, "cuMemUnmap", unmap);
    load(library, "cuMemSetAccess", set_access);
    ready = error_name && granularity && reserve && unreserve && create && release && map && unmap && set_access;
  }

  template <class Function> static void load(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
  }
};

const Driver& driver() {
  static const Driver library;
  return library;
}

CUmemAllocationProp properties_of(int device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  return properties;
}

CUdeviceptr as_number(const void* address) { return reinterpret_cast<CUdeviceptr>(address); }

std::size_t round_up(std::size_t bytes, std::size_t multiple) { return (bytes + multiple - 1) / multiple * multiple; }

/// One piece behind one address. The mapping alone keeps the memory: it goes when it is unmapped.
CUresult map_piece(CUdeviceptr address, std::size_t bytes, const CUmemAllocationProp& properties) {
  CUmemGenericAllocationHandle memory = 0;
  CUresult status = driver().create(&memory, bytes, &properties, 0);
  if (status != CUDA_SUCCESS) return status;
  status = driver().map(address, bytes, 0, memory, 0);
  const CUresult released = driver().release(memory);
  return status == CUDA_SUCCESS ? released : status;
}

/// All pieces or none.
CUresult map_pieces(CUdeviceptr address, std::size_t bytes, std::size_t piece_bytes, int device) {
  const CUmemAllocationProp properties = properties_of(device);
  CUresult status = CUDA_SUCCESS;
  std::size_t done = 0;
  while (done < bytes && status == CUDA_SUCCESS) {
    const std::size_t piece = std::min(bytes - done, piece_bytes);
    status = map_piece(address + done, piece, properties);
    if (status == CUDA_SUCCESS) done += piece;
  }
  if (status == CUDA_SUCCESS) {
    const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    status = driver().set_access(address, bytes, &access, 1);
  }
  if (status == CUDA_SUCCESS) return status;
  for (std::size_t gone = 0; gone < done; gone += piece_bytes) {
    driver().unmap(address + gone, std::min(done - gone, piece_bytes));
  }
  return status;
}

/// Where a container or a virtual machine forbids it, only a trial shows that.
bool works(int device, std::size_t granularity) {
  CUdeviceptr address = 0;
  if (driver().reserve(&address, granularity, 0, 0, 0) != CUDA_SUCCESS) return false;
  const CUresult status = map_pieces(address, granularity, granularity, device);
  if (status == CUDA_SUCCESS) driver().unmap(address, granularity);
  driver().unreserve(address, granularity);
  return status == CUDA_SUCCESS || status == CUDA_ERROR_OUT_OF_MEMORY;
}

}  // namespace

std::unique_ptr<VirtualMemory> VirtualMemory::of(int device) {
  std::size_t granularity = 0, free = 0, total = 0;
  const CUmemAllocationProp properties = properties_of(device);
  if (!driver().ready || cudaMemGetInfo(&free, &total) != cudaSuccess ||
      driver().granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS ||
      !works(device, granularity)) {
    cudaGetLastError();
    return nullptr;
  }
  // Twice the card, so that holes among the addresses do not matter.
  return std::unique_ptr<VirtualMemory>(new VirtualMemory(device, granularity, round_up(2 * total, granularity)));
}

memory::MemorySource::Addresses VirtualMemory::reserve() const {
  CUdeviceptr address = 0;
  if (driver().reserve(&address, range_bytes_, 0, 0, 0) != CUDA_SUCCESS) return {};
  return {reinterpret_cast<void*>(address), range_bytes_};
}

void VirtualMemory::unreserve(memory::MemorySource::Addresses addresses) const noexcept {
  driver().unreserve(as_number(addresses.begin), addresses.bytes);
}

bool VirtualMemory::map(void* address, std::size_t bytes, std::size_t piece_bytes) const {
  std::size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) == cudaSuccess && free < bytes) return false;  // sooner known than by trying
  const CUresult status = map_pieces(as_number(address), bytes, piece_bytes, device_);
  if (status == CUDA_SUCCESS) return true;
  if (status == CUDA_ERROR_OUT_OF_MEMORY) return false;
  const char* name = nullptr;
  driver().error_name(status, &name);
  throw DeviceError(fmt::format("memory of cuda:{} could not be mapped: {}", device_, name ? name : "unknown error"));
}

void VirtualMemory::unmap(void* address, std::size_t bytes) const noexcept {
  driver().unmap(as_number(address), bytes);
}

}  // namespace cuttle::cuda
