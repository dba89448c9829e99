#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>

#include "cuttle/device.hpp"
#include "support/source_folder.hpp"

std::string source_folder() {
  const char* folder = std::getenv("CUTTLE_SOURCE_DIR");
  return folder ? folder : CUTTLE_SOURCE_DIR;
}

/// Test cases that need a GPU are named "cuda: ...". Without one they are filtered out, which doctest counts as
/// skipped.
int main(int argc, char** argv) {
  doctest::Context context(argc, argv);
  if (const std::string why = cuttle::why_no_cuda(); !why.empty()) {
    std::printf("test cases named 'cuda: ...' are skipped: %s\n", why.c_str());
    context.addFilter("test-case-exclude", "cuda: *");
  }
  return context.run();
}
