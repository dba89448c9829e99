#include <doctest/doctest.h>

#include <algorithm>
#include <utility>

#include "cuda/gpu.hpp"
#include "cuttle/ops.hpp"

using namespace cuttle;
using namespace cuttle::testing;

namespace {

constexpr std::size_t kKiB = 1024, kMiB = 1024 * kKiB;

}  // namespace

TEST_CASE("cuda: bytes of any size go to the device and come back unchanged") {
  for (const std::size_t size : {std::size_t{1}, std::size_t{3}, std::size_t{255}, 64 * kKiB - 1, 64 * kKiB,
                                 64 * kKiB + 1, 4 * kMiB - 1, 4 * kMiB, 4 * kMiB + 1, 13 * kMiB + 7}) {
    CAPTURE(size);
    const auto bytes = some_bytes(size, static_cast<std::uint32_t>(size));
    const Tensor there = bytes_on(gpu(), size);
    to_gpu(there, bytes);
    CHECK(from_gpu(there) == bytes);
    CHECK(from_gpu(there.clone()) == bytes);
  }
}

TEST_CASE("cuda: the host side may change as soon as a copy returns, also when the device is busy") {
  for (const std::size_t size : {std::size_t{100}, 9 * kMiB}) {
    CAPTURE(size);
    auto bytes = some_bytes(size, 1);
    const auto expected = bytes;
    const Tensor there = bytes_on(gpu(), size);
    keep_busy(gpu());
    to_gpu(there, bytes);
    std::ranges::fill(bytes, std::uint8_t{0xEE});
    CHECK(from_gpu(there) == expected);
  }
}

TEST_CASE("cuda: more copies than the staging memory holds wait their turn") {
  // Each sum exceeds what may be in flight at once: 8 MiB of small copies, 128 MiB of large ones.
  for (const auto& [size, count] : {std::pair<std::size_t, int>{60 * kKiB, 200}, {kMiB - 1, 200}, {5 * kMiB, 40}}) {
    CAPTURE(size);
    std::vector<Tensor> there;
    keep_busy(gpu());
    for (int i = 0; i < count; ++i) {
      there.push_back(bytes_on(gpu(), size));
      to_gpu(there.back(), some_bytes(size, static_cast<std::uint32_t>(i)));
    }
    for (int i = 0; i < count; ++i) {
      REQUIRE(from_gpu(there[static_cast<std::size_t>(i)]) == some_bytes(size, static_cast<std::uint32_t>(i)));
    }
  }
}

TEST_CASE("cuda: a copy is ordered with the work before and after it") {
  const Shape shape{1 << 20};
  int reused = 0;
  for (int i = 1; i < 30; ++i) {
    Tensor a = Tensor::full(shape, i, {.device = gpu()});
    keep_busy(gpu());
    const Tensor twice = add(a, a);
    const void* place = a.raw_data();
    a = {};  // its memory is free for the host while the sum has still to read it
    const Tensor uploaded = Tensor::full(shape, -i).to(gpu());
    reused += uploaded.raw_data() == place ? 1 : 0;
    const Tensor after = add(uploaded, uploaded);
    REQUIRE(all_equal(twice, static_cast<float>(2 * i)));
    REQUIRE(all_equal(after, static_cast<float>(-2 * i)));
  }
  CHECK(reused > 0);
}

TEST_CASE("cuda: an upload beside other work is there after join") {
  const auto bytes = some_bytes(11 * kMiB + 5, 3);
  Tensor there = bytes_on(gpu(), bytes.size());
  const auto upload = gpu_backend().upload(there, bytes.data());
  keep_busy(gpu());
  upload->join();
  upload->join();
  CHECK(from_gpu(there) == bytes);
}

TEST_CASE("cuda: an upload that nobody joins does not write over the memory's next owner") {
  const auto bytes = some_bytes(11 * kMiB, 4), next = some_bytes(11 * kMiB, 5);
  int reused = 0;
  for (int i = 0; i < 10; ++i) {
    keep_busy(gpu());
    Tensor dropped = bytes_on(gpu(), bytes.size());
    const void* place = dropped.raw_data();
    gpu_backend().upload(std::exchange(dropped, {}), bytes.data());
    const Tensor owner = bytes_on(gpu(), next.size());
    reused += owner.raw_data() == place ? 1 : 0;
    to_gpu(owner, next);
    REQUIRE(from_gpu(owner) == next);
  }
  CHECK(reused > 0);
}

TEST_CASE("cuda: what is read back has the value it had when it was asked for") {
  Tensor x = Tensor::empty({1000}, {.device = gpu()});
  std::vector<std::unique_ptr<Readback>> values;
  keep_busy(gpu());
  for (int i = 0; i < 40; ++i) {
    x.fill_(i);
    values.push_back(gpu_backend().read_back(x));
  }
  for (int i = 39; i >= 0; --i) {
    const auto* value = static_cast<const float*>(values[static_cast<std::size_t>(i)]->wait());
    CHECK(value[0] == i);
    CHECK(value[999] == i);
    CHECK(values[static_cast<std::size_t>(i)]->ready());
  }
  values.clear();
  // The buffers are used again.
  x.fill_(77);
  CHECK(static_cast<const float*>(gpu_backend().read_back(x)->wait()) != nullptr);
  const auto again = gpu_backend().read_back(x);
  CHECK(static_cast<const float*>(again->wait())[500] == 77);
}
