#include "io/write_stream.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string>
#include <thread>

using namespace cuttle;

namespace {

constexpr std::chrono::milliseconds kPatience{10};
bool never() { return false; }

}  // namespace

TEST_CASE("write_stream waits for a reader where the descriptor would not block") {
  int ends[2];
  REQUIRE(pipe2(ends, O_NONBLOCK) == 0);
  std::string sent(1 << 20, ' '), received;  // more than a pipe holds
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<char>(i * 31 % 251);
  std::thread reader([&] {
    fcntl(ends[0], F_SETFL, 0);
    char part[4096];
    while (const ssize_t n = read(ends[0], part, sizeof part)) {
      if (n < 0) break;
      received.append(part, static_cast<std::size_t>(n));
    }
  });
  CHECK(write_stream(ends[1], sent, never, kPatience) == 0);
  close(ends[1]);
  reader.join();
  close(ends[0]);
  CHECK(received == sent);
}

TEST_CASE("write_stream leaves a reader that does not read once it may") {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  int asked = 0;
  CHECK(write_stream(
            ends[1], std::string(1 << 20, ' '), [&] { return ++asked > 300; }, std::chrono::milliseconds(0)) ==
        ETIMEDOUT);
  CHECK(asked > 300);
  close(ends[0]);
  close(ends[1]);
}

TEST_CASE("write_stream gives the error of what cannot be written") {
  const int full = open("/dev/full", O_WRONLY), unwritable = open("/dev/null", O_RDONLY);
  CHECK(write_stream(full, "text", never, kPatience) == ENOSPC);
  CHECK(write_stream(unwritable, "text", never, kPatience) == EBADF);
  CHECK(write_stream(unwritable, "", never, kPatience) == 0);
  close(full);
  close(unwritable);
}
