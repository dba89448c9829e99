#include "cli/interrupt.hpp"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string_view>

namespace cuttle::cli {
namespace {

volatile std::sig_atomic_t asked_by = 0;

void ask_to_stop(int signal) {
  const int error = errno;
  if (asked_by == 0) asked_by = signal;
  const std::string_view text = signal == SIGHUP ? "\nfinishing this step, then saving\n"
                                                 : "\nfinishing this step, then saving; once more ends at once\n";
  pollfd stream{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (poll(&stream, 1, 0) > 0) {
    [[maybe_unused]] const auto written = write(STDERR_FILENO, text.data(), text.size());
  }
  errno = error;
}

bool is_ignored(int signal) {
  struct sigaction present {};
  return sigaction(signal, nullptr, &present) == 0 && present.sa_handler == SIG_IGN;
}

}  // namespace

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = ask_to_stop;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  if (!is_ignored(SIGHUP)) sigaction(SIGHUP, &action, nullptr);
  action.sa_flags |= static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

int stop_signal() { return asked_by; }

}  // namespace cuttle::cli
