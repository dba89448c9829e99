#include "data/workers.hpp"

#include <utility>

namespace cuttle::data {

Workers::Workers(int threads) {
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

Workers::~Workers() {
  give_up();
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  begun_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Workers::start(std::int64_t parts, std::function<void(std::int64_t)> task) {
  give_up();
  {
    const std::lock_guard lock(mutex_);
    task_ = std::move(task);
    parts_ = parts;
    claimed_ = finished_ = 0;
  }
  begun_.notify_one();
}

void Workers::wait() {
  std::unique_lock lock(mutex_);
  while (claimed_ < parts_) do_part(lock);
  await_claimed(lock);
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Workers::give_up() {
  std::unique_lock lock(mutex_);
  parts_ = claimed_;
  await_claimed(lock);
  failure_ = nullptr;
}

void Workers::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    begun_.wait(lock, [this] { return claimed_ < parts_ || stop_; });
    if (stop_) return;
    // Each wakes the next: a short task is done before all are up, and whoever began it has only one to wake.
    if (claimed_ + 1 < parts_) begun_.notify_one();
    do_part(lock);
  }
}

void Workers::do_part(std::unique_lock<std::mutex>& lock) {
  const std::int64_t part = claimed_++;
  lock.unlock();
  std::exception_ptr failure;
  try {
    task_(part);
  } catch (...) {
    failure = std::current_exception();
  }
  lock.lock();
  // Parts are begun in order, so the first that throws is always among those begun.
  if (failure && (!failure_ || part < failed_part_)) {
    failure_ = failure;
    failed_part_ = part;
  }
  if (failure) parts_ = claimed_;
  if (++finished_ == parts_) done_.notify_all();
}

void Workers::await_claimed(std::unique_lock<std::mutex>& lock) {
  done_.wait(lock, [this] { return finished_ == parts_; });
}

}  // namespace cuttle::data
