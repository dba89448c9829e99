#include "cuttle/error.hpp"

namespace cuttle {

Error::Error(std::string cause, std::string hint)
    : std::runtime_error(hint.empty() ? cause : cause + "\n  hint: " + hint),
      cause_(std::move(cause)),
      hint_(std::move(hint)) {}

}  // namespace cuttle
