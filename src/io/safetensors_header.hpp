#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "cuttle/dtype.hpp"
#include "cuttle/shape.hpp"

namespace cuttle {

/// One tensor as the JSON header of a safetensors file describes it: bytes [begin, end) of the data behind the header.
struct TensorEntry {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::uint64_t begin = 0, end = 0;
};

struct SafetensorsHeader {
  std::vector<TensorEntry> tensors;  ///< in header order
  std::map<std::string, std::string> metadata;
};

/// Reads the JSON text and checks that its tensors fill `data_bytes` bytes without gap or overlap. Throws
/// CheckpointError that names `file` and the tensor at fault.
SafetensorsHeader parse_safetensors_header(const std::string& file, std::string_view json, std::uint64_t data_bytes);

/// The JSON text, padded with spaces so that the data behind it is aligned to 8 bytes.
std::string format_safetensors_header(const SafetensorsHeader& header);

}  // namespace cuttle
