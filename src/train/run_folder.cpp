#include "train/run_folder.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "cuttle/error.hpp"

namespace cuttle::train {
namespace {

namespace fs = std::filesystem;

// The state last: what is left by a kill between two of them can be resumed.
constexpr const char* kEntries[] = {"report.html", "metrics.jsonl", "model.safetensors", "state"};
constexpr const char* kState = "checkpoint.safetensors";

bool holds_run(const fs::path& folder) {
  for (const char* entry : kEntries) {
    if (fs::exists(folder / entry)) return true;
  }
  return false;
}

/// DIR/previous is replaced only when all of the run is together, so that at every moment the run can be found. What a
/// killed process had begun to move is finished with the rest.
void put_aside(const fs::path& folder, const fs::path& previous) {
  const fs::path moving = folder / "moving";
  fs::create_directory(moving);
  for (const char* entry : kEntries) {
    if (fs::exists(folder / entry)) fs::rename(folder / entry, moving / entry);
  }
  fs::remove_all(previous);
  fs::rename(moving, previous);
}

IoError not_writable(const std::string& folder, const std::error_code& reason) {
  return IoError(fmt::format("the folder {} cannot be prepared: {}", folder, reason.message()),
                 "give --out a folder that you may write to");
}

std::error_code last_error() { return {errno, std::generic_category()}; }

/// The lock goes with the process, however that ends; the file stays.
int open_lock(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw not_writable(folder, error);
  const int descriptor = open((fs::path(folder) / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor < 0) throw not_writable(folder, last_error());
  return descriptor;
}

/// What NFS, Lustre and others answer where nobody has set up locks.
bool is_without_locks(const std::error_code& error) {
  return error == std::errc::no_lock_available || error == std::errc::function_not_supported ||
         error == std::errc::operation_not_supported || error == std::errc::not_supported;
}

}  // namespace

RunLock::RunLock(const std::string& folder) : descriptor_(open_lock(folder)) {
  if (flock(descriptor_, LOCK_EX | LOCK_NB) == 0) return;
  const std::error_code error = last_error();
  if (is_without_locks(error)) {
    why_unguarded_ = error.message();
    return;
  }
  close(descriptor_);
  if (error == std::errc::operation_would_block) {
    throw UsageError(fmt::format("another run is using the folder {}", folder),
                     "wait until it ends, or give --out another folder");
  }
  throw not_writable(folder, error);
}

RunLock::~RunLock() { close(descriptor_); }

std::string model_file_of(const std::string& folder) { return (fs::path(folder) / "model.safetensors").string(); }
std::string state_file_of(const std::string& folder) { return (fs::path(folder) / "state" / kState).string(); }
std::string metrics_file_of(const std::string& folder) { return (fs::path(folder) / "metrics.jsonl").string(); }
std::string report_file_of(const std::string& folder) { return (fs::path(folder) / "report.html").string(); }

std::string begin_run_folder(const std::string& folder, const std::function<void(const std::string&)>& save) {
  const fs::path run(folder), starting = run / "starting", previous = run / "previous";
  try {
    fs::create_directories(starting);
    save((starting / kState).string());
    const bool had_run = holds_run(run) || fs::exists(run / "moving");
    if (had_run) put_aside(run, previous);
    fs::rename(starting, run / "state");
    return had_run ? previous.string() : std::string();
  } catch (const fs::filesystem_error& error) {
    throw not_writable(folder, error.code());
  } catch (const Error&) {
    std::error_code ignored;
    fs::remove_all(starting, ignored);
    throw;
  }
}

}  // namespace cuttle::train
