#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "cuttle/error.hpp"
#include "cuttle/serialization.hpp"
#include "io/atomic_file.hpp"
#include "io/safetensors_header.hpp"

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian and read as they are");

namespace cuttle {

namespace {

constexpr std::uint64_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the Python package
constexpr const char* kCopyAgain = "copy the file again or take an older checkpoint";

/// Offsets in order of falling element size, so that every tensor is aligned to its element; the header keeps the
/// caller's order. Returns the order of the data.
std::vector<std::size_t> place(std::vector<TensorEntry>& entries) {
  std::vector<std::size_t> order(entries.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](std::size_t i) { return size_of(entries[i].dtype); });
  std::uint64_t at = 0;
  for (const std::size_t i : order) {
    entries[i].begin = at;
    at += static_cast<std::uint64_t>(entries[i].shape.numel()) * size_of(entries[i].dtype);
    entries[i].end = at;
  }
  return order;
}

/// The tensor in host memory in logical order.
Tensor in_file_order(const Tensor& tensor) { return tensor.detach().to(kCpu).to(Layout::nchw); }

std::ifstream open_checkpoint(const std::string& file, std::uint64_t& bytes) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (!std::filesystem::exists(status)) throw CheckpointError(fmt::format("'{}' is not there", file), "check the path");
  if (!std::filesystem::is_regular_file(status))
    throw CheckpointError(fmt::format("'{}' is not a file", file), "check the path");
  std::ifstream in(file, std::ios::binary);
  if (!in)
    throw CheckpointError(fmt::format("'{}' cannot be opened: {}", file, std::strerror(errno)),
                          "check the file's permissions");
  bytes = std::filesystem::file_size(file, error);
  return in;
}

void read_exactly(std::ifstream& in, const std::string& file, void* to, std::uint64_t bytes) {
  in.read(static_cast<char*>(to), static_cast<std::streamsize>(bytes));
  if (std::cmp_not_equal(in.gcount(), bytes)) {
    throw CheckpointError(fmt::format("'{}' ended while it was read", file), kCopyAgain);
  }
}

/// The length that the file claims for its header, once it fits.
std::uint64_t read_header_length(std::ifstream& in, const std::string& file, std::uint64_t file_bytes) {
  if (file_bytes < kLengthBytes) {
    throw CheckpointError(fmt::format("'{}' is truncated: {} bytes are no safetensors file", file, file_bytes),
                          kCopyAgain);
  }
  std::uint64_t length = 0;
  read_exactly(in, file, &length, kLengthBytes);
  if (length > file_bytes - kLengthBytes) {
    throw CheckpointError(fmt::format("'{}' claims a header of {} bytes, but has {} in all", file, length, file_bytes),
                          "it is truncated or no safetensors file");
  }
  if (length > kMaxHeaderBytes) {
    throw CheckpointError(fmt::format("'{}' has a header of {} bytes, more than {}", file, length, kMaxHeaderBytes),
                          kCopyAgain);
  }
  return length;
}

}  // namespace

void save_safetensors(const std::string& file, const std::vector<nn::NamedTensor>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  SafetensorsHeader header{{}, metadata};
  for (const auto& [name, tensor] : tensors) {
    header.tensors.push_back({name, tensor.dtype(), tensor.shape()});
  }
  const std::vector<std::size_t> order = place(header.tensors);
  const std::string text = format_safetensors_header(header);
  const std::uint64_t length = text.size();

  AtomicFile out(file);
  out.write(&length, kLengthBytes);
  out.write(text.data(), text.size());
  for (const std::size_t i : order) {
    const Tensor plain = in_file_order(tensors[i].tensor);
    if (plain.numel() > 0) out.write(plain.raw_data(), plain.nbytes());
  }
  out.commit();
}

SafetensorsFile load_safetensors(const std::string& file) {
  std::uint64_t file_bytes = 0;
  std::ifstream in = open_checkpoint(file, file_bytes);
  std::string text(read_header_length(in, file, file_bytes), '\0');
  read_exactly(in, file, text.data(), text.size());
  const std::uint64_t data_begin = kLengthBytes + text.size();
  const SafetensorsHeader header = parse_safetensors_header(file, text, file_bytes - data_begin);

  SafetensorsFile result{{}, header.metadata};
  for (const TensorEntry& entry : header.tensors) {
    Tensor tensor = Tensor::empty(entry.shape, {entry.dtype, kCpu, Layout::nchw});
    in.seekg(static_cast<std::streamoff>(data_begin + entry.begin));
    if (entry.end > entry.begin) read_exactly(in, file, tensor.raw_mutable_data(), entry.end - entry.begin);
    result.tensors.push_back({entry.name, tensor});
  }
  return result;
}

}  // namespace cuttle
