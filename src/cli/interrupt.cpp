#include "cli/interrupt.hpp"

#include <csignal>
#include <string_view>

#include <unistd.h>

namespace cuttle::cli {
namespace {

volatile std::sig_atomic_t stop_asked = 0;

void ask_to_stop(int) {
  stop_asked = 1;
  static constexpr std::string_view text = "\nfinishing this step, then saving; once more ends at once\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, text.data(), text.size());
}

}  // namespace

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = ask_to_stop;
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  action.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &action, nullptr);
}

bool interrupted() { return stop_asked != 0; }

}  // namespace cuttle::cli
