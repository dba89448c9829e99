#pragma once
#include <chrono>
#include <functional>
#include <string_view>

namespace cuttle {

/// Writes all of it to a pipe, terminal or file, waiting while the other end takes nothing; once `give_up` answers true
/// only for so long. 0, or the error that kept the rest out.
int write_stream(int descriptor, std::string_view text, const std::function<bool()>& give_up,
                 std::chrono::milliseconds patience);

}  // namespace cuttle
