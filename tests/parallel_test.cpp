#include "cpu/parallel.hpp"

#include <doctest/doctest.h>

#include <atomic>
#include <stdexcept>
#include <thread>
#include <vector>

#include "cuttle/device.hpp"
#include "cuttle/error.hpp"

using namespace cuttle;

namespace {

struct ThreadScope {
  explicit ThreadScope(int n) { set_num_threads(n); }
  ~ThreadScope() { set_num_threads(0); }
};

/// Whether parallel_for visits every index of [0, n) exactly once, in pieces of at least `grain`.
bool covers_once(std::int64_t n, std::int64_t grain) {
  std::vector<std::atomic<int>> visits(static_cast<std::size_t>(n));
  std::atomic<bool> too_small = false;
  cpu::parallel_for(n, grain, [&](std::int64_t begin, std::int64_t end) {
    if (end - begin < grain && end != n) too_small = true;
    for (std::int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
  });
  for (const std::atomic<int>& count : visits) {
    if (count != 1) return false;
  }
  return !too_small;
}

}  // namespace

TEST_CASE("parallel_for visits every index once for any size, grain and number of threads") {
  for (const int threads : {1, 2, 3, 8}) {
    const ThreadScope scope(threads);
    for (const std::int64_t n : {0, 1, 2, 7, 64, 1000}) {
      for (const std::int64_t grain : {1, 3, 100}) {
        CAPTURE(threads);
        CAPTURE(n);
        CAPTURE(grain);
        CHECK(covers_once(n, grain));
      }
    }
  }
}

TEST_CASE("parallel_for does not start other threads for less than a grain of work") {
  const ThreadScope scope(4);
  int calls = 0;
  cpu::parallel_for(10, 10, [&](std::int64_t begin, std::int64_t end) {
    ++calls;
    CHECK(begin == 0);
    CHECK(end == 10);
  });
  CHECK(calls == 1);
}

TEST_CASE("Both threads work on a region at once") {
  const ThreadScope scope(2);
  std::atomic<int> arrived = 0;
  // Each piece waits for the other one, so this ends only if two threads run them side by side.
  cpu::parallel_for(2, 1, [&](std::int64_t, std::int64_t) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();
  });
  CHECK(arrived == 2);
}

TEST_CASE("A nested parallel_for runs in place on its thread") {
  const ThreadScope scope(3);
  std::atomic<std::int64_t> sum = 0;
  std::atomic<bool> moved = false;
  cpu::parallel_for(6, 1, [&](std::int64_t begin, std::int64_t end) {
    const std::thread::id self = std::this_thread::get_id();
    cpu::parallel_for(100, 1, [&](std::int64_t inner_begin, std::int64_t inner_end) {
      if (std::this_thread::get_id() != self) moved = true;
      sum += (end - begin) * (inner_end - inner_begin);
    });
  });
  CHECK(sum == 600);
  CHECK_FALSE(moved);
}

TEST_CASE("An exception in any piece reaches the caller, and the pool works on") {
  for (const int threads : {1, 4}) {
    const ThreadScope scope(threads);
    for (int round = 0; round < 50; ++round) {
      const auto fail = [&](std::int64_t begin, std::int64_t end) {
        if (begin <= round && round < end) throw std::runtime_error("piece failed");
      };
      CHECK_THROWS_WITH_AS(cpu::parallel_for(50, 1, fail), "piece failed", std::runtime_error);
    }
    CHECK(covers_once(100, 1));
  }
}

TEST_CASE("Several user threads may call parallel_for at once") {
  const ThreadScope scope(3);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> users;
  for (int user = 0; user < 4; ++user) {
    users.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        if (!covers_once(64, 1)) ++wrong;
      }
    });
  }
  for (std::thread& user : users) user.join();
  CHECK(wrong == 0);
}

TEST_CASE("The number of threads can be changed between regions, and 0 means all cores") {
  const ThreadScope scope(0);
  const int cores = num_threads();
  CHECK(cores >= 1);
  for (const int threads : {5, 1, 2, 7}) {
    set_num_threads(threads);
    CHECK(num_threads() == threads);
    CHECK(covers_once(100, 1));
  }
  set_num_threads(0);
  CHECK(num_threads() == cores);
}

TEST_CASE("An impossible number of threads is refused") {
  CHECK_THROWS_AS(set_num_threads(-1), UsageError);
  CHECK_THROWS_AS(set_num_threads(100000), UsageError);
}
