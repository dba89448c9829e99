#pragma once
#include <string_view>

namespace cuttle {

/// Writes all of it to a file descriptor, waiting where that would block. 0, or the error that kept the rest out.
int write_all(int descriptor, std::string_view bytes);

}  // namespace cuttle
