#pragma once
#include <functional>
#include <string>

namespace cuttle::train {

/// Files of a run's folder.
std::string model_file_of(const std::string& folder);    ///< DIR/model.safetensors
std::string state_file_of(const std::string& folder);    ///< DIR/state/checkpoint.safetensors
std::string metrics_file_of(const std::string& folder);  ///< DIR/metrics.jsonl
std::string report_file_of(const std::string& folder);   ///< DIR/report.html

/// Keeps other processes out of a run's folder while it lives; makes the folder. Throws UsageError where another run
/// holds it, IoError where it cannot be made. On a file system without locks it keeps nobody out.
class RunLock {
 public:
  explicit RunLock(const std::string& folder);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;
  /// Why nobody is kept out; empty: everybody is.
  const std::string& why_unguarded() const { return why_unguarded_; }

 private:
  int descriptor_;
  std::string why_unguarded_;
};

/// Makes the folder and puts the state that `save` writes into it. A run that lies there goes to DIR/previous, in place
/// of what that held, once the new state is written: a disk that is full costs nothing, and a kill at any moment leaves
/// the former run whole or the new state beside DIR/previous. Returns DIR/previous if a run went there, else nothing.
/// Throws IoError.
std::string begin_run_folder(const std::string& folder, const std::function<void(const std::string& file)>& save);

}  // namespace cuttle::train
