#include <fmt/format.h>
#include <stb/stb_image.h>
#include <stb/stb_image_write.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

#include "cuttle/error.hpp"
#include "data/picture_file.hpp"

namespace cuttle::data {

namespace {

constexpr std::uintmax_t kMaxFileBytes = std::uintmax_t{1} << 30;  // stb_image counts bytes in an int

std::vector<std::uint8_t> read_file(const std::string& file) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (!std::filesystem::exists(status)) throw DataError(fmt::format("'{}' is not there", file), "check the path");
  if (!std::filesystem::is_regular_file(status)) throw DataError(fmt::format("'{}' is not a file", file));
  std::ifstream in(file, std::ios::binary);
  if (!in) throw DataError(fmt::format("'{}' cannot be opened: {}", file, std::strerror(errno)));
  const std::uintmax_t size = std::filesystem::file_size(file, error);
  if (size > kMaxFileBytes) {
    throw DataError(fmt::format("'{}' has {} bytes; pictures of up to {} are read", file, size, kMaxFileBytes));
  }
  std::vector<std::uint8_t> bytes(size);
  in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size));
  bytes.resize(static_cast<std::size_t>(in.gcount()));
  return bytes;
}

[[noreturn]] void throw_undecodable(const std::string& file, const char* reason) {
  throw DataError(fmt::format("'{}' cannot be decoded: {}", file, reason), "replace or remove the file");
}

}  // namespace

Picture decode_with_stb(const std::string& file, Bytes bytes) {
  const int length = static_cast<int>(bytes.size());
  int width = 0, height = 0, channels = 0;
  if (!stbi_info_from_memory(bytes.data(), length, &width, &height, &channels)) {
    throw_undecodable(file, "its header is broken or of a kind that is not read");
  }
  check_picture_size(file, height, width);
  const std::unique_ptr<stbi_uc, void (*)(void*)> pixels(
      stbi_load_from_memory(bytes.data(), length, &width, &height, &channels, 0), stbi_image_free);
  if (!pixels) throw_undecodable(file, stbi_failure_reason());
  const std::int64_t count = std::int64_t{height} * width * channels;
  return {height, width, channels, std::vector(pixels.get(), pixels.get() + count)};
}

Picture decode_picture(const std::string& file, Bytes bytes) {
  if (bytes.empty()) throw DataError(fmt::format("'{}' is empty", file), "replace or remove the file");
  switch (kind_of(bytes)) {
    case PictureKind::png: return decode_png(file, bytes);
    case PictureKind::jpeg: return decode_jpeg(file, bytes);
    case PictureKind::bmp: return decode_bmp(file, bytes);
    case PictureKind::pnm: return decode_pnm(file, bytes);
    case PictureKind::unknown: break;
  }
  throw DataError(fmt::format("'{}' is not a picture that can be read", file), "PNG, JPEG, BMP, PGM and PPM can");
}

Picture read_picture(const std::string& file) { return decode_picture(file, read_file(file)); }

std::vector<std::uint8_t> encode_png(const Picture& picture) {
  check_picture("encode_png", picture);
  std::vector<std::uint8_t> png;
  const auto append = [](void* context, void* data, int size) {
    const auto* bytes = static_cast<const std::uint8_t*>(data);
    auto& out = *static_cast<std::vector<std::uint8_t>*>(context);
    out.insert(out.end(), bytes, bytes + size);
  };
  const int width = static_cast<int>(picture.width), channels = static_cast<int>(picture.channels);
  if (!stbi_write_png_to_func(append, &png, width, static_cast<int>(picture.height), channels, picture.pixels.data(),
                              width * channels)) {
    throw Error(fmt::format("a picture of {}x{}x{} could not be written as PNG", picture.height, picture.width,
                            picture.channels));
  }
  return png;
}

}  // namespace cuttle::data
