#include "cuda/libraries.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>

#include <array>
#include <map>
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

struct Wanted {
  std::string name;    ///< "libcudnn.so.9"
  std::string folder;  ///< where CMake saw it
  std::span<const Symbol> symbols;
};

/// The file that an opened library was read from.
std::string file_of(void* library, const std::string& name) {
  link_map* map = nullptr;
  return dlinfo(library, RTLD_DI_LINKMAP, static_cast<void*>(&map)) == 0 && map ? map->l_name : name;
}

/// Why cuDNN of another major version will not do, or nothing. Asked before the other functions, which it may lack.
std::string other_version(void* library) {
  const auto version = reinterpret_cast<decltype(&::cudnnGetVersion)>(dlsym(library, "cudnnGetVersion"));
  const std::string found = version ? cudnn_version_text(version()) : std::string();
  return found.empty() || found.starts_with(fmt::format("{}.", CUDNN_MAJOR)) ? std::string() : "is cuDNN " + found;
}

/// What keeps an opened library from being used, or nothing.
std::string what_is_wrong(void* library, const Wanted& wanted) {
  if (const std::string version = other_version(library); !version.empty()) return version;
  for (const Symbol& symbol : wanted.symbols) {
    if (!dlsym(library, symbol.name)) return fmt::format("has no function {}", symbol.name);
  }
  return {};
}

/// The loader's own search comes first, so that LD_LIBRARY_PATH decides, even for a file that cannot be used; the
/// folder that CMake found counts where the loader finds none. Sets all targets and returns the file; or throws
/// DeviceError saying what is wrong.
std::string open(const Wanted& wanted) {
  void* library = dlopen(wanted.name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const std::string why = dlerror();
    if (!why.starts_with(wanted.name + ": cannot open shared object file")) throw DeviceError(why);
    library = dlopen((wanted.folder + "/" + wanted.name).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) throw DeviceError(why);
  }
  std::string file = file_of(library, wanted.name);
  if (const std::string wrong = what_is_wrong(library, wanted); !wrong.empty()) {
    dlclose(library);
    throw DeviceError(fmt::format("{} {}", file, wrong));
  }
  for (const Symbol& symbol : wanted.symbols) symbol.set(dlsym(library, symbol.name));
  return file;
}

std::mutex mutex;
auto& files = *new std::map<Library, std::string>;

}  // namespace

std::string cudnn_version_text(std::size_t v) {
  // Before version 9 a thousand stood for the major version.
  return v < 90000 ? fmt::format("{}.{}.{}", v / 1000, v / 100 % 10, v % 100)
                   : fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
}

std::string file_of(Library library) {
  const std::lock_guard lock(mutex);
  const auto found = files.find(library);
  return found == files.end() ? std::string() : found->second;
}

void load(Library library) {
  const std::lock_guard lock(mutex);
  if (library == Library::cudnn) {
    try {
      files[library] = open({fmt::format("libcudnn.so.{}", CUDNN_MAJOR), CUTTLE_CUDNN_FOLDER, kCudnn});
    } catch (const DeviceError& error) {
      throw CudnnError(fmt::format("cuDNN {} cannot be used: {}", CUDNN_MAJOR, error.cause()),
                       "install it, put its folder first in LD_LIBRARY_PATH, or do without: --conv gemm");
    }
    return;
  }
  const bool lt = library == Library::cublas_lt;
  try {
    files[library] = open({fmt::format("libcublas{}.so.{}", lt ? "Lt" : "", CUBLAS_VER_MAJOR), CUTTLE_CUBLAS_FOLDER,
                           lt ? std::span<const Symbol>(kCublasLt) : std::span<const Symbol>(kCublas)});
  } catch (const DeviceError& error) {
    throw DeviceError(fmt::format("cuBLAS {} cannot be used: {}", CUBLAS_VER_MAJOR, error.cause()),
                      "install it or put its folder first in LD_LIBRARY_PATH");
  }
}

}  // namespace cuttle::cuda
