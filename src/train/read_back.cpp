#include "train/read_back.hpp"

#include <cstddef>
#include <vector>

namespace cuttle::train {
namespace {

class Done final : public Readback {
 public:
  explicit Done(const Tensor& t) : bytes_(t.nbytes()) {
    backend(t.device().kind).copy(bytes_.data(), kCpu, t.raw_data(), t.device(), t.nbytes());
  }
  bool ready() override { return true; }
  const void* wait() override { return bytes_.data(); }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace

std::unique_ptr<Readback> read_back(const Tensor& t) {
  const Backend& b = backend(t.device().kind);
  if (b.read_back) return b.read_back(t);
  return std::make_unique<Done>(t);
}

}  // namespace cuttle::train
