#include "data/byte_source.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "cuttle/error.hpp"

namespace cuttle::data {

namespace {

constexpr std::size_t kBufferBytes = 64 * 1024;
// Deflate's best is 258 bytes in two bits (zlib.net/zlib_tech.html).
constexpr std::uint64_t kDeflateLimit = 1032;
constexpr int kGzipWindow = 15 + 16;  // zlib: largest window, gzip wrapping

}  // namespace

ByteSource::ByteSource(const std::string& file) : file_(file), handle_(nullptr, std::fclose) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (!std::filesystem::exists(status)) throw DataError(fmt::format("'{}' is not there", file), "check the path");
  if (!std::filesystem::is_regular_file(status)) throw DataError(fmt::format("'{}' is not a file", file));
  handle_.reset(std::fopen(file.c_str(), "rb"));
  if (!handle_) throw DataError(fmt::format("'{}' cannot be opened: {}", file, std::strerror(errno)));
  file_bytes_ = std::filesystem::file_size(file, error);
  if (file_bytes_ == 0) throw DataError(fmt::format("'{}' is empty", file), "download it again");

  packed_.resize(kBufferBytes);
  refill();
  gzipped_ = inflater_.avail_in >= 2 && packed_[0] == 0x1f && packed_[1] == 0x8b;
  if (!gzipped_ && file.ends_with(".gz")) {
    throw DataError(fmt::format("'{}' is not gzip data, although its name ends in .gz", file),
                    "download it again, or take .gz off its name if it was unpacked already");
  }
  if (gzipped_ && inflateInit2(&inflater_, kGzipWindow) != Z_OK) throw Error("zlib: inflateInit2 failed");
}

ByteSource::~ByteSource() {
  if (gzipped_) inflateEnd(&inflater_);
}

std::uint64_t ByteSource::most_bytes() const { return gzipped_ ? file_bytes_ * kDeflateLimit : file_bytes_; }

std::size_t ByteSource::read(std::span<std::uint8_t> out) { return gzipped_ ? read_gzip(out) : read_plain(out); }

/// Loads the next bytes of the file once all before were used; false at its end.
bool ByteSource::refill() {
  if (inflater_.avail_in > 0) return true;
  const std::size_t got = std::fread(packed_.data(), 1, packed_.size(), handle_.get());
  if (std::ferror(handle_.get())) throw DataError(fmt::format("'{}' cannot be read: {}", file_, std::strerror(errno)));
  inflater_.next_in = packed_.data();
  inflater_.avail_in = static_cast<uInt>(got);
  return got > 0;
}

std::size_t ByteSource::read_plain(std::span<std::uint8_t> out) {
  std::size_t done = 0;
  while (done < out.size() && refill()) {
    const std::size_t n = std::min<std::size_t>(inflater_.avail_in, out.size() - done);
    std::memcpy(out.data() + done, inflater_.next_in, n);
    inflater_.next_in += n;
    inflater_.avail_in -= static_cast<uInt>(n);
    done += n;
  }
  return done;
}

std::size_t ByteSource::read_gzip(std::span<std::uint8_t> out) {
  std::size_t done = 0;
  while (done < out.size()) {
    if (!refill()) {
      cut_off_ = !member_ended_;
      break;
    }
    if (member_ended_) {  // a gzip file may be several, one behind the other
      if (*inflater_.next_in != 0x1f) throw DataError(fmt::format("'{}' has bytes behind its gzip data", file_));
      inflateReset(&inflater_);
      member_ended_ = false;
    }
    const std::size_t room = std::min<std::size_t>(out.size() - done, 1u << 30);
    inflater_.next_out = out.data() + done;
    inflater_.avail_out = static_cast<uInt>(room);
    const int result = inflate(&inflater_, Z_NO_FLUSH);
    done += room - inflater_.avail_out;
    member_ended_ = result == Z_STREAM_END;
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
      throw DataError(fmt::format("'{}' is corrupt: its gzip data breaks after {} bytes ({})", file_,
                                  inflater_.total_out, inflater_.msg ? inflater_.msg : zError(result)),
                      "download it again");
    }
  }
  return done;
}

}  // namespace cuttle::data
