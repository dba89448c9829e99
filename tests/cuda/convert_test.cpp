#include <limits>

#include "cuda/twin.hpp"

using namespace cuttle;
using namespace cuttle::test;

namespace {

constexpr DType kAll[] = {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8};

}  // namespace

TEST_CASE("cuda: convert keeps numbers that both dtypes hold, between every pair of dtypes and layouts") {
  // Tiles that are full, cut off at either side, and too narrow; rows of odd and even length.
  for (const Shape& shape :
       {Shape{2, 3, 5, 7}, Shape{1, 33, 17, 2}, Shape{3, 1, 4, 4}, Shape{2, 40, 1, 1}, Shape{2, 64, 8, 8},
        Shape{2, 70, 33, 5}, Shape{3, 9, 3, 3}, Shape{2, 130, 2, 4}, Shape{4099}}) {
    Values numbers(static_cast<std::size_t>(shape.numel()));
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<double>(i % 251);
    for (const DType from_dtype : kAll) {
      for (const Layout from_layout : kLayouts) {
        const Tensor host = rounded(numbers, shape, from_dtype, from_layout);
        for (const std::int64_t offset : {0, 1}) {
          const Tensor in = upload(host, offset);
          for (const DType to_dtype : kAll) {
            for (const Layout to_layout : kLayouts) {
              CAPTURE(in.str());
              const Tensor out = output(shape, to_dtype, to_layout, offset);
              CAPTURE(out.str());
              on_gpu().convert(in, out);
              CHECK(from(out) == numbers);
            }
          }
        }
      }
    }
  }
}

TEST_CASE("cuda: convert rounds, truncates, wraps and overflows as the CPU does") {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  Values numbers{0.0,
                 -0.0,
                 0.1,
                 -1.9,
                 1.9,
                 255,
                 256,
                 300.7,
                 -1,
                 -257,
                 65504,
                 65519.996,
                 65520,
                 2049,
                 16777217,
                 16777219,
                 1e30,
                 -1e30,
                 0x1p-24,
                 0x1p-25,
                 0x1p-149,
                 0x1p40,
                 0x1p31,
                 -0x1p31,
                 -0x1p31 - 1,
                 1e300,
                 -1e300,
                 0x1p63,
                 -0x1p63,
                 1 + 0x1p-8,
                 1 + 0x3p-8,
                 1 + 0x1p-11,
                 1 + 0x1p-24,
                 0x1.fffp127,
                 kInf,
                 -kInf,
                 std::numeric_limits<double>::quiet_NaN()};
  const Shape shape{static_cast<std::int64_t>(numbers.size())};
  for (const DType from_dtype : kAll) {
    const Tensor host = rounded(numbers, shape, from_dtype);
    for (const DType to_dtype : kAll) {
      CAPTURE(name_of(from_dtype));
      CAPTURE(name_of(to_dtype));
      const Tensor expected = Tensor::empty(shape, {to_dtype}), out = output(shape, to_dtype);
      cpu().convert(host, expected);
      on_gpu().convert(host.to(gpu()), out);
      CHECK(error_of(from(out), from(expected), 1) == 0);
    }
  }
}

TEST_CASE("cuda: flatten of an NHWC tensor has the logical order") {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    Values numbers(2 * 16 * 5 * 5);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<double>(i % 251);
    const Tensor x = upload(rounded(numbers, {2, 16, 5, 5}, dtype));
    CHECK(from(x.reshape({2, -1})) == numbers);
    CHECK(from(x.reshape({2, -1}).reshape({2, 16, 5, 5})) == numbers);
  }
}
