#pragma once
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace cuttle::data {

/// Threads that do one task at a time, whose parts they share out among themselves and whoever waits for it.
class Workers {
 public:
  /// With no threads wait() does all the work.
  explicit Workers(int threads);
  ~Workers();  ///< gives the task up
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// Begins to call task(0) to task(parts - 1), in any order and several at once, giving up the task before.
  void start(std::int64_t parts, std::function<void(std::int64_t)> task);
  /// Helps until every part is done. What a part threw is thrown again, that of the first part which throws, whatever
  /// the number of threads; parts behind it may be left out. Returns at once where nothing was started.
  void wait();
  /// Leaves out the parts that nobody has begun and waits for the others; what they threw is lost.
  void give_up();

 private:
  void run();
  void do_part(std::unique_lock<std::mutex>& lock);
  void await_claimed(std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable begun_, done_;
  std::function<void(std::int64_t)> task_;
  std::int64_t parts_ = 0, claimed_ = 0, finished_ = 0;
  std::exception_ptr failure_;
  std::int64_t failed_part_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;  // last, so that they start when all else is there
};

}  // namespace cuttle::data
