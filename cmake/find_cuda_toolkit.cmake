# find_package(CUDAToolkit) for CMake 3.25 and CUDA 13 together: to projects that ask for CMake 3.25 or newer that
# version's module calls CUDA::nvToolsExt deprecated, which CUDA 13 no longer has, and stops.
set(cuttle_minimum_version ${CMAKE_MINIMUM_REQUIRED_VERSION})
set(CMAKE_MINIMUM_REQUIRED_VERSION 3.24)
find_package(CUDAToolkit 12 QUIET)
set(CMAKE_MINIMUM_REQUIRED_VERSION ${cuttle_minimum_version})
