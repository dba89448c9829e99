#include "io/write_stream.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace cuttle {
namespace {

/// False if it was given up. An error of the descriptor is left to the write.
bool wait_until_writable(int descriptor, const std::function<bool()>& give_up, std::chrono::milliseconds patience) {
  while (true) {
    const bool is_last = give_up();
    pollfd writable{.fd = descriptor, .events = POLLOUT, .revents = 0};
    const int ready = ::poll(&writable, 1, static_cast<int>(patience.count()));
    if (ready > 0 || (ready < 0 && errno != EINTR)) return true;
    if (ready == 0 && is_last) return false;
  }
}

}  // namespace

int write_stream(int descriptor, std::string_view text, const std::function<bool()>& give_up,
                 std::chrono::milliseconds patience) {
  while (!text.empty()) {
    if (!wait_until_writable(descriptor, give_up, patience)) return ETIMEDOUT;
    // So much fits a pipe that can be written at all.
    const ssize_t written = ::write(descriptor, text.data(), std::min<std::size_t>(text.size(), PIPE_BUF));
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR && errno != EAGAIN) {
      return errno;
    }
  }
  return 0;
}

}  // namespace cuttle
