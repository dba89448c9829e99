#pragma once
#include <cstddef>
#include <string>
#include <string_view>

namespace cuttle {

/// Replaces a file as a whole: the content goes to `<file>.tmp` beside it and takes the file's place in commit(). Until
/// then, and if anything fails, `file` holds what it held. Writers of one file wait for each other. A process that is
/// killed leaves the .tmp file, which the next writer overwrites. Throws IoError.
class AtomicFile {
 public:
  explicit AtomicFile(std::string file);
  ~AtomicFile();  ///< removes the temporary file unless it was committed
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);
  /// Syncs the content, renames, and syncs the folder: after it returns, the new content survives a power cut.
  void commit();

 private:
  bool lock_temporary();
  [[noreturn]] void fail(const char* what, int error) const;

  std::string file_, temporary_;
  int descriptor_ = -1;
};

/// Writes a whole file in this way. Throws IoError with the system's reason; the old file is untouched then.
void write_file_atomically(const std::string& file, std::string_view content);

}  // namespace cuttle
