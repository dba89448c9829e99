#include "io/atomic_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "cuttle/error.hpp"

namespace cuttle {

namespace {

bool same_file(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

/// 0 or the error. Some file systems cannot sync a folder and need no such call.
int sync_folder_of(const std::string& file) {
  const std::filesystem::path folder = std::filesystem::path(file).parent_path();
  const int descriptor = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return errno;
  const int error = ::fsync(descriptor) == 0 || errno == EINVAL || errno == ENOTSUP ? 0 : errno;
  ::close(descriptor);
  return error;
}

const char* hint_for(int error) {
  if (error == ENOSPC || error == EDQUOT) return "free some space; the old file is untouched";
  if (error == EFBIG) return "raise the limit on the size of files (ulimit -f); the old file is untouched";
  return "check that the folder is there and can be written";
}

}  // namespace

AtomicFile::AtomicFile(std::string file) : file_(std::move(file)), temporary_(file_ + ".tmp") {
  struct stat old {};
  const bool exists = ::stat(file_.c_str(), &old) == 0;
  if (exists && !S_ISREG(old.st_mode)) throw IoError(fmt::format("'{}' is not a file that can be replaced", file_));
  while (!lock_temporary()) {}
  // Shrunk only now that it is known to be nobody else's; the old file's permissions are kept.
  if (::ftruncate(descriptor_, 0) != 0 || (exists && ::fchmod(descriptor_, old.st_mode & 07777) != 0)) {
    const int error = errno;
    ::close(std::exchange(descriptor_, -1));
    fail("prepared", error);
  }
}

/// Opens and locks the temporary file. False if the writer before renamed or removed it in between: what is locked
/// then is no longer the temporary file.
bool AtomicFile::lock_temporary() {
  descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
  if (descriptor_ < 0) fail("opened", errno);
  // Where the file system has no locks this fails at once; a run is the only writer of its files, so that is no loss.
  while (::flock(descriptor_, LOCK_EX) != 0 && errno == EINTR) {}
  struct stat locked {};
  struct stat named {};
  const bool both = ::fstat(descriptor_, &locked) == 0 && ::stat(temporary_.c_str(), &named) == 0;
  if (both && same_file(locked, named)) return true;
  ::close(std::exchange(descriptor_, -1));
  return false;
}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  ::unlink(temporary_.c_str());
  ::close(descriptor_);
}

void AtomicFile::fail(const char* what, int error) const {
  throw IoError(fmt::format("'{}' could not be {}: {}", temporary_, what, std::strerror(error)), hint_for(error));
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  const char* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor_, next, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) fail("written", errno);
    next += written;
    bytes -= static_cast<std::size_t>(written);
  }
}

void AtomicFile::commit() {
  if (::fsync(descriptor_) != 0) fail("synced", errno);
  if (::rename(temporary_.c_str(), file_.c_str()) != 0) fail("renamed", errno);
  // The lock goes with the descriptor; a close that fails after a successful fsync loses nothing.
  ::close(std::exchange(descriptor_, -1));
  if (const int error = sync_folder_of(file_)) {
    throw IoError(fmt::format("the folder of '{}' could not be synced: {}", file_, std::strerror(error)));
  }
}

void write_file_atomically(const std::string& file, std::string_view content) {
  AtomicFile out(file);
  out.write(content.data(), content.size());
  out.commit();
}

}  // namespace cuttle
