#pragma once
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace cuttle::data {

/// A thread that runs one task at a time.
class Worker {
 public:
  Worker();
  ~Worker();  ///< waits for the task; what it threw is lost
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  /// Begins a task; the one before must have been waited for.
  void start(std::function<void()> task);
  /// Returns when the task is done, rethrowing what it threw. Returns at once where none was started.
  void wait();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> task_;
  std::exception_ptr failure_;
  bool stop_ = false;
  std::thread thread_;  // last, so that it starts when all else is there
};

}  // namespace cuttle::data
