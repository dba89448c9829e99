#include <fmt/format.h>

#include <cctype>

#include "cuttle/error.hpp"
#include "data/picture_file.hpp"

namespace cuttle::data {

namespace {

constexpr const char* kReplace = "replace or remove the file";

/// Reads the numbers of the header, which white space and comments ("# ..." to the end of the line) set apart.
class HeaderReader {
 public:
  HeaderReader(const std::string& file, Bytes bytes) : file_(file), bytes_(bytes) {}

  std::int64_t number() {
    skip_space();
    std::int64_t value = -1;
    while (at_ < bytes_.size() && std::isdigit(bytes_[at_])) {
      value = (value < 0 ? 0 : value) * 10 + (bytes_[at_++] - '0');
      if (value > kLargest) break;
    }
    if (value < 0 || value > kLargest)
      throw DataError(fmt::format("'{}' has a broken PGM or PPM header", file_), kReplace);
    return value;
  }
  std::size_t position() const { return at_; }

 private:
  static constexpr std::int64_t kLargest = 1'000'000'000;

  void skip_space() {
    while (at_ < bytes_.size() && (std::isspace(bytes_[at_]) || bytes_[at_] == '#')) {
      if (bytes_[at_] == '#') {
        while (at_ < bytes_.size() && bytes_[at_] != '\n') ++at_;
      } else {
        ++at_;
      }
    }
  }

  const std::string& file_;
  Bytes bytes_;
  std::size_t at_ = 2;  // behind "P5"
};

}  // namespace

Picture decode_pnm(const std::string& file, Bytes bytes) {
  const char kind = static_cast<char>(bytes[1]);
  if (kind != '5' && kind != '6') {
    throw DataError(
        fmt::format("'{}' is a P{} file; of the PNM family only binary PGM (P5) and PPM (P6) are read", file, kind),
        "convert it, for example to PNG");
  }
  HeaderReader header(file, bytes);
  Picture picture;
  picture.channels = kind == '5' ? 1 : 3;
  picture.width = header.number();
  picture.height = header.number();
  const std::int64_t maxval = header.number();
  check_picture_size(file, picture.height, picture.width);
  if (maxval < 1 || maxval > 65535)
    throw DataError(fmt::format("'{}' has a maxval of {}, not 1..65535", file, maxval), kReplace);

  const std::size_t sample_bytes = maxval > 255 ? 2 : 1;
  const auto samples = static_cast<std::size_t>(picture.height * picture.width * picture.channels);
  const std::size_t wanted = header.position() + 1 + samples * sample_bytes;
  if (bytes.size() < wanted) {
    throw DataError(fmt::format("'{}' is truncated: {} bytes are there, {} are wanted", file, bytes.size(), wanted),
                    kReplace);
  }
  const std::uint8_t* in = bytes.data() + header.position() + 1;
  picture.pixels.resize(samples);
  for (std::uint8_t& pixel : picture.pixels) {
    const std::int64_t value = sample_bytes == 2 ? in[0] << 8 | in[1] : in[0];
    if (value > maxval) {
      throw DataError(fmt::format("'{}' has a sample of {}, above its maxval of {}", file, value, maxval), kReplace);
    }
    pixel = static_cast<std::uint8_t>((value * 255 + maxval / 2) / maxval);
    in += sample_bytes;
  }
  return picture;
}

}  // namespace cuttle::data
