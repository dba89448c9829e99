#include "io/write_all.hpp"

#include <poll.h>
#include <unistd.h>

#include <cerrno>

namespace cuttle {

int write_all(int descriptor, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      // A stream shared with a program that has made it non-blocking.
      pollfd writable{.fd = descriptor, .events = POLLOUT, .revents = 0};
      if (::poll(&writable, 1, -1) < 0 && errno != EINTR) return errno;
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace cuttle
