#include "cuda/libraries.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <mutex>
#include <span>
#include <string>

#include "cuttle/error.hpp"

namespace cuttle::cuda {

namespace {

struct Symbol {
  const char* name;
  void (*set)(void* address);
};

template <class Function> void set_target(void* address) {
  Function::target = reinterpret_cast<typename Function::Pointer>(address);
}

#define CUTTLE_TEXT_OF(text) #text
#define CUTTLE_TEXT(name) CUTTLE_TEXT_OF(name)  // cublas_v2.h renames functions by macro: cublasCreate_v2
#define CUTTLE_SYMBOL(name, type) Symbol{CUTTLE_TEXT(name), set_target<std::remove_const_t<decltype(name)>>},
constexpr std::array kCudnn{CUTTLE_CUDNN_FUNCTIONS(CUTTLE_SYMBOL)};
constexpr std::array kCublas{CUTTLE_CUBLAS_FUNCTIONS(CUTTLE_SYMBOL)};
constexpr std::array kCublasLt{CUTTLE_CUBLAS_LT_FUNCTIONS(CUTTLE_SYMBOL)};

/// Sets all targets or none; returns what is wrong.
std::string try_file(const std::string& file, std::span<const Symbol> symbols) {
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return dlerror();
  for (const Symbol& symbol : symbols) {
    if (!dlsym(library, symbol.name)) {
      dlclose(library);
      return fmt::format("{} has no function {}", file, symbol.name);
    }
  }
  for (const Symbol& symbol : symbols) symbol.set(dlsym(library, symbol.name));
  return {};
}

/// The loader's own search comes first, so that LD_LIBRARY_PATH decides; then the folder that CMake found.
std::string try_everywhere(const std::string& name, const std::string& folder, std::span<const Symbol> symbols) {
  const std::string why = try_file(name, symbols);
  if (why.empty() || try_file(folder + "/" + name, symbols).empty()) return {};
  return why;
}

}  // namespace

void load(Library library) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (library == Library::cudnn) {
    const std::string name = fmt::format("libcudnn.so.{}", CUDNN_MAJOR);
    if (const std::string why = try_everywhere(name, CUTTLE_CUDNN_FOLDER, kCudnn); !why.empty()) {
      throw CudnnError(fmt::format("cuDNN {} cannot be used: {}", CUDNN_MAJOR, why),
                       "install it, add its folder to LD_LIBRARY_PATH, or do without: --conv gemm");
    }
    return;
  }
  const bool lt = library == Library::cublas_lt;
  const std::string name = fmt::format("libcublas{}.so.{}", lt ? "Lt" : "", CUBLAS_VER_MAJOR);
  const auto symbols = lt ? std::span<const Symbol>(kCublasLt) : std::span<const Symbol>(kCublas);
  if (const std::string why = try_everywhere(name, CUTTLE_CUBLAS_FOLDER, symbols); !why.empty()) {
    throw DeviceError(fmt::format("cuBLAS {} cannot be used: {}", CUBLAS_VER_MAJOR, why),
                      "install it or add its folder to LD_LIBRARY_PATH");
  }
}

}  // namespace cuttle::cuda
