#pragma once
#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace cuttle::data {

/// The bytes of a file, unpacked where it is gzipped, handed out piece by piece: nothing is allocated for what a header
/// merely claims. Every fault is a DataError that names the file.
class ByteSource {
 public:
  /// Throws DataError if the file is missing, unreadable, empty, or named .gz and not gzipped.
  explicit ByteSource(const std::string& file);
  ~ByteSource();
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  /// Fills `out` as far as the bytes go and returns how many came. Throws DataError on corrupt gzip data.
  std::size_t read(std::span<std::uint8_t> out);
  const std::string& file() const { return file_; }
  std::uint64_t file_bytes() const { return file_bytes_; }
  bool gzipped() const { return gzipped_; }
  /// More bytes than this cannot come out of the file, however it is packed.
  std::uint64_t most_bytes() const;
  /// Whether the gzip data ended before its own end mark; known once read() came back short.
  bool cut_off() const { return cut_off_; }

 private:
  bool refill();
  std::size_t read_plain(std::span<std::uint8_t> out);
  std::size_t read_gzip(std::span<std::uint8_t> out);

  std::string file_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> handle_;
  std::uint64_t file_bytes_ = 0;
  bool gzipped_ = false, member_ended_ = false, cut_off_ = false;
  z_stream inflater_{};
  std::vector<std::uint8_t> packed_;
};

}  // namespace cuttle::data
