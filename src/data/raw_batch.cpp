#include "data/raw_batch.hpp"

#include "core/tensor_impl.hpp"

namespace cuttle::data {
namespace {

Tensor part(const Tensor& array, std::size_t offset, const Shape& shape, DType dtype) {
  return make_tensor(array.impl()->storage, offset, shape, dtype, Layout::nhwc);
}

}  // namespace

RawBatch::RawBatch(std::int64_t count, const ImageSet& set, bool moved) {
  const Shape shape{count, set.channels, set.height, set.width};
  const std::int64_t labels_at = (shape.numel() + 7) / 8 * 8, windows_at = labels_at + 8 * count;
  bytes = Tensor::empty({windows_at + (moved ? 12 * count : 0)}, {.dtype = DType::u8});
  images = part(bytes, 0, shape, DType::u8);
  labels = part(bytes, static_cast<std::size_t>(labels_at), {count}, DType::i64);
  if (moved) windows = part(bytes, static_cast<std::size_t>(windows_at), {count, 3}, DType::i32);
}

RawBatch RawBatch::like(const Tensor& array) const {
  const auto same_part = [&](const Tensor& t) {
    return t.defined() ? part(array, t.impl()->offset, t.shape(), t.dtype()) : Tensor();
  };
  RawBatch result;
  result.bytes = array;
  result.images = same_part(images);
  result.labels = same_part(labels);
  result.windows = same_part(windows);
  return result;
}

}  // namespace cuttle::data
