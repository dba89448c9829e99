#pragma once
#include <stdexcept>
#include <string>

namespace cuttle {

/// Root of every exception Cuttle throws. `cause()` is one sentence saying what is wrong (op, shapes, numbers);
/// `hint()` is one sentence saying what helps, or empty. `what()` is both.
class Error : public std::runtime_error {
 public:
  explicit Error(std::string cause, std::string hint = {});
  const std::string& cause() const { return cause_; }
  const std::string& hint() const { return hint_; }

 private:
  std::string cause_, hint_;
};

struct UsageError : Error {
  using Error::Error;
};  ///< an impossible value from the user; exit code 2
struct ShapeError : Error {
  using Error::Error;
};  ///< shapes or layouts that do not fit an op
struct DtypeError : Error {
  using Error::Error;
};  ///< a dtype that an op does not take
struct DeviceError : Error {
  using Error::Error;
};  ///< no such device, tensors on different devices, no kernel
struct AutogradError : Error {
  using Error::Error;
};  ///< second backward, changed saved tensor, non-scalar root
struct OutOfMemoryError : Error {
  using Error::Error;
};  ///< after the cache was released and retried; exit code 3
struct CudnnError : Error {
  using Error::Error;
};  ///< a cuDNN call failed; names the call and the convolution
struct DataError : Error {
  using Error::Error;
};  ///< a dataset or image that cannot be read; exit code 4
struct CheckpointError : Error {
  using Error::Error;
};  ///< weights or state that cannot be read; exit code 4
struct IoError : Error {
  using Error::Error;
};  ///< a file that cannot be written
struct DivergedError : Error {
  using Error::Error;
};  ///< the loss is NaN or infinite

}  // namespace cuttle
