#include "cpu/parallel.hpp"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cuttle/device.hpp"
#include "cuttle/error.hpp"
#include "cuttle/threads.hpp"

namespace cuttle {

namespace {

std::atomic<int> requested_threads = 0;

/// Cores' worth of time that a cgroup v2 quota (a container's --cpus) leaves, rounded up; kMostThreads without one.
int quota_cores() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return kMostThreads;
  const double cores = std::stod(quota) / period;
  return std::clamp(static_cast<int>(cores + 0.999), 1, kMostThreads);
}

int available_cores() {
  static const int cores = [] {
    cpu_set_t set;
    const bool known = sched_getaffinity(0, sizeof set, &set) == 0;
    const int allowed = known ? CPU_COUNT(&set) : static_cast<int>(std::thread::hardware_concurrency());
    return std::clamp(std::min(allowed, quota_cores()), 1, kMostThreads);
  }();
  return cores;
}

void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Waits until `value` is no longer `old`. It spins first: a training step has tens of regions a few microseconds
/// apart, and waking a sleeper costs more than that. With more threads than cores a spinner would keep the one it
/// waits for from running, so then it sleeps at once.
void wait_while_equal(const std::atomic<std::uint32_t>& value, std::uint32_t old, bool may_spin) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kSpin = std::chrono::microseconds(60);
  if (may_spin) {
    for (const auto end = Clock::now() + kSpin; Clock::now() < end;) {
      for (int i = 0; i < 16; ++i) {
        if (value.load(std::memory_order_acquire) != old) return;
        pause_core();
      }
    }
  }
  value.wait(old, std::memory_order_acquire);
}

thread_local bool in_region = false;

/// Sets in_region for a scope.
struct RegionMark {
  RegionMark() { in_region = true; }
  ~RegionMark() { in_region = false; }
  RegionMark(const RegionMark&) = delete;
  RegionMark& operator=(const RegionMark&) = delete;
};

/// Persistent workers that help one calling thread at a time. A region is open while its caller works on it; workers
/// that wake up in time join it, late ones find it closed and sleep again, so the caller never waits for a sleeper.
class Pool {
 public:
  using Body = void (*)(void*, std::int64_t, std::int64_t);

  ~Pool() { stop(); }

  /// False if another thread's region is running; nothing was done then.
  bool try_run(std::int64_t n, std::int64_t grain, int threads, Body body, void* context) {
    const std::unique_lock lock(one_region_, std::try_to_lock);
    if (!lock) return false;
    if (static_cast<int>(workers_.size()) != threads - 1) restart(threads - 1);
    body_ = body;
    context_ = context;
    n_ = n;
    // Four pieces a thread even out cores of different speed or load.
    piece_ = std::max(grain, (n + 4 * threads - 1) / (4 * threads));
    next_.store(0, std::memory_order_relaxed);
    failed_.store(false, std::memory_order_relaxed);
    members_.store(kOpen, std::memory_order_release);
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
    work();
    close();
    if (failed_.load(std::memory_order_relaxed)) std::rethrow_exception(std::exchange(failure_, nullptr));
    return true;
  }

 private:
  static constexpr std::uint32_t kOpen = 1u << 31;

  void restart(int count) {
    stop();
    may_spin_ = count + 1 <= available_cores();
    stopping_.store(false, std::memory_order_relaxed);
    const std::uint32_t seen = epoch_.load(std::memory_order_relaxed);
    for (int i = 0; i < count; ++i) workers_.emplace_back([this, seen] { serve(seen); });
  }

  void stop() {
    stopping_.store(true, std::memory_order_relaxed);
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
  }

  void serve(std::uint32_t seen) {
    for (;;) {
      wait_while_equal(epoch_, seen, may_spin_);
      seen = epoch_.load(std::memory_order_acquire);
      if (stopping_.load(std::memory_order_relaxed)) return;
      if (!join()) continue;
      work();
      leave();
    }
  }

  bool join() {
    std::uint32_t members = members_.load(std::memory_order_relaxed);
    while (members & kOpen) {
      if (members_.compare_exchange_weak(members, members + 1, std::memory_order_acquire)) return true;
    }
    return false;
  }

  void leave() {
    if (members_.fetch_sub(1, std::memory_order_acq_rel) == 1) members_.notify_all();
  }

  void close() {
    std::uint32_t members = members_.fetch_and(~kOpen, std::memory_order_acq_rel) & ~kOpen;
    while (members != 0) {
      wait_while_equal(members_, members, may_spin_);
      members = members_.load(std::memory_order_acquire);
    }
  }

  void work() {
    const RegionMark mark;
    try {
      for (;;) {
        const std::int64_t begin = next_.fetch_add(piece_, std::memory_order_relaxed);
        if (begin >= n_) return;
        body_(context_, begin, std::min(begin + piece_, n_));
      }
    } catch (...) {
      if (!failed_.exchange(true, std::memory_order_relaxed)) failure_ = std::current_exception();
      next_.store(n_, std::memory_order_relaxed);
    }
  }

  std::mutex one_region_;
  std::vector<std::thread> workers_;
  bool may_spin_ = true;
  std::atomic<bool> stopping_ = false;

  std::atomic<std::uint32_t> epoch_ = 0;    ///< changes when a region opens
  std::atomic<std::uint32_t> members_ = 0;  ///< kOpen while open, plus the workers inside
  // Of the open region.
  Body body_ = nullptr;
  void* context_ = nullptr;
  std::int64_t n_ = 0, piece_ = 1;
  std::atomic<std::int64_t> next_ = 0;
  std::atomic<bool> failed_ = false;
  std::exception_ptr failure_;
};

}  // namespace

void set_num_threads(int n) {
  if (n < 0 || n > kMostThreads) {
    throw UsageError(fmt::format("{} threads were asked for", n),
                     fmt::format("use 1 to {}, or 0 for all cores", kMostThreads));
  }
  requested_threads = n;
}

int num_threads() {
  const int n = requested_threads;
  return n > 0 ? n : available_cores();
}

namespace cpu::detail {

void parallel_for(std::int64_t n, std::int64_t grain, void (*body)(void*, std::int64_t, std::int64_t), void* context) {
  if (n <= 0) return;
  const int threads = num_threads();
  static Pool pool;
  if (threads > 1 && n > grain && !in_region && pool.try_run(n, grain, threads, body, context)) return;
  body(context, 0, n);
}

}  // namespace cpu::detail
}  // namespace cuttle
