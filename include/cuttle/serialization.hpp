#pragma once
#include <map>
#include <string>
#include <vector>

#include "cuttle/nn.hpp"

namespace cuttle {

struct SafetensorsFile {
  std::vector<nn::NamedTensor> tensors;         ///< on the CPU, in header order; the 4-D ones in NCHW layout
  std::map<std::string, std::string> metadata;  ///< the header's __metadata__
};

/// The safetensors format (8-byte header length, JSON header, raw little-endian data), 4-D tensors in logical N,C,H,W
/// order, so that the Python package reads and writes the same files. Written to a temporary name beside it, synced
/// and renamed: whatever happens, `file` holds the old or the new content. Throws IoError, or UsageError for two
/// tensors of one name.
void save_safetensors(const std::string& file, const std::vector<nn::NamedTensor>& tensors,
                      const std::map<std::string, std::string>& metadata = {});
/// Throws CheckpointError naming the file and what is wrong: truncated, a header beyond the file, offsets that are
/// negative, overlap or leave gaps, a size that does not match, an unknown dtype, a name that stands twice. Nothing
/// larger than the file is ever allocated.
SafetensorsFile load_safetensors(const std::string& file);

}  // namespace cuttle
