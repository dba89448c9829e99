#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace cuttle {

// Figures as people write them.

/// "512 B", "1.86 GiB"
std::string format_bytes(std::uint64_t bytes);
/// "1:02:03" or "2:03".
std::string human_duration(double seconds);
/// "421,642"
std::string human_count(std::int64_t n);

/// Whether the text begins so; then that is taken off it.
bool take_prefix(std::string_view& text, std::string_view prefix);
/// The parts between separators, empty ones too.
std::vector<std::string_view> split(std::string_view text, char separator);

/// Whether the text is well-formed UTF-8.
bool is_utf8(std::string_view text);

}  // namespace cuttle
