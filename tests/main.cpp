#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>

#include "cuttle/device.hpp"

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
