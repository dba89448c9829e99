// One fault for each tool of compute-sanitizer: scripts/sanitize asks whether the tool finds it. Built by that script
// alone. The namespace is that of Cuttle's kernels, which two of the tools are told to look at.
#include <cstring>

namespace cuttle {

__global__ void out_of_bounds(int* p, int count) { p[count] = 1; }

__global__ void uninitialised(int* p, int) { p[0] = p[1] + 1; }

__global__ void race(int* p, int) {
  __shared__ int shared[64];
  shared[threadIdx.x] = static_cast<int>(threadIdx.x);
  p[threadIdx.x] = shared[63 - threadIdx.x];  // no barrier before it
}

__global__ void divergent_barrier(int* p, int) {
  if (threadIdx.x % 2 == 0) __syncwarp(0x1);  // called by threads that are not in the mask
  p[threadIdx.x] = 1;
}

}  // namespace cuttle

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const auto is = [&](const char* tool) { return std::strcmp(argv[1], tool) == 0; };
  auto* kernel = is("memcheck")    ? cuttle::out_of_bounds
                 : is("initcheck") ? cuttle::uninitialised
                 : is("racecheck") ? cuttle::race
                                   : cuttle::divergent_barrier;
  constexpr int kCount = 64;
  int* p = nullptr;
  if (cudaMalloc(&p, kCount * sizeof(int)) != cudaSuccess) return 1;
  kernel<<<1, kCount>>>(p, kCount);
  cudaDeviceSynchronize();
  return 0;
}
