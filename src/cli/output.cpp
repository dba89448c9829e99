#include "cli/output.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <streambuf>
#include <string>

#include "cli/interrupt.hpp"
#include "cuttle/error.hpp"
#include "io/write_stream.hpp"

namespace cuttle::cli {
namespace {

/// A reader that does not read holds the program up, but not one that a signal asked to save and end.
int write_to(int descriptor, std::string_view text) {
  return write_stream(
      descriptor, text, [] { return stop_signal() != 0; }, std::chrono::seconds(2));
}

class StdoutBuffer final : public std::streambuf {
 public:
  StdoutBuffer() { clear(); }
  int error() const { return error_; }

 protected:
  int_type overflow(int_type next) override {
    if (sync() != 0) return traits_type::eof();
    return traits_type::eq_int_type(next, traits_type::eof()) ? traits_type::not_eof(next) : sputc(char(next));
  }
  int sync() override {
    if (error_ == 0) error_ = write_to(STDOUT_FILENO, {pbase(), static_cast<std::size_t>(pptr() - pbase())});
    clear();
    return error_ == 0 ? 0 : -1;
  }

 private:
  void clear() { setp(bytes_.data(), bytes_.data() + bytes_.size()); }

  std::array<char, 16384> bytes_;
  int error_ = 0;
};

StdoutBuffer& stdout_buffer() {
  static StdoutBuffer buffer;
  return buffer;
}

}  // namespace

void prepare_streams() {
  // A file opened in place of a closed stream would get what is meant for that stream.
  int descriptor = 0;
  do {
    descriptor = open("/dev/null", O_RDONLY);  // where writing fails, as it should
  } while (descriptor >= 0 && descriptor <= STDERR_FILENO);
  if (descriptor > STDERR_FILENO) close(descriptor);

  struct sigaction ignore {};
  ignore.sa_handler = SIG_IGN;
  sigemptyset(&ignore.sa_mask);
  sigaction(SIGPIPE, &ignore, nullptr);
  sigaction(SIGXFSZ, &ignore, nullptr);
}

std::ostream& output() {
  static std::ostream stream(&stdout_buffer());
  return stream;
}

int output_error() { return stdout_buffer().error(); }

void deliver() {
  output().flush();
  if (output_error() == 0) return;
  throw IoError(fmt::format("stdout cannot be written, and output is lost: {}", std::strerror(output_error())),
                "check the space left where it leads, or the program that reads it");
}

void warn_line(std::string_view line) { write_to(STDERR_FILENO, std::string(line) + '\n'); }

}  // namespace cuttle::cli
