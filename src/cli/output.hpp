#pragma once
#include <fmt/format.h>

#include <ostream>
#include <string_view>
#include <utility>

namespace cuttle::cli {

// All that this program prints goes through here. Nothing that happens to a standard stream throws or ends the process:
// what cannot be written is dropped.

/// To be called before anything is opened or printed: keeps files out of the numbers of closed standard streams, and
/// makes writing to a pipe without a reader, or beyond the limit on a file's size, an error instead of a signal.
void prepare_streams();

/// Stdout, buffered. After the first failure all further text is dropped.
std::ostream& output();
template <class... Values> void say(fmt::format_string<Values...> text, Values&&... values) {
  output() << fmt::format(text, std::forward<Values>(values)...);
}
/// Why text for stdout was lost: an errno; 0: nothing was.
int output_error();
/// For commands whose work is what they say. Writes out what is buffered; throws IoError if text was lost.
void deliver();

/// A line on stderr.
void warn_line(std::string_view line);
template <class... Values> void warn(fmt::format_string<Values...> text, Values&&... values) {
  warn_line(fmt::format(text, std::forward<Values>(values)...));
}

}  // namespace cuttle::cli
