#include "io/write_all.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <thread>

using namespace cuttle;

TEST_CASE("write_all waits for a reader where the descriptor would not block") {
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
  CHECK(write_all(ends[1], sent) == 0);
  close(ends[1]);
  reader.join();
  close(ends[0]);
  CHECK(received == sent);
}

TEST_CASE("write_all gives the error of what cannot be written") {
  const int full = open("/dev/full", O_WRONLY), unwritable = open("/dev/null", O_RDONLY);
  CHECK(write_all(full, "text") == ENOSPC);
  CHECK(write_all(unwritable, "text") == EBADF);
  CHECK(write_all(unwritable, "") == 0);
  close(full);
  close(unwritable);
}
