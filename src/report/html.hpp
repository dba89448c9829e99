#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace cuttle::report {

/// Text made safe between tags and inside quoted attributes.
std::string escape(std::string_view text);
/// RFC 4648, with padding.
std::string base64(std::span<const std::uint8_t> bytes);

/// The page around `body`: styles for light and dark, no scripts, nothing from elsewhere.
std::string page(std::string_view title, std::string_view body);

}  // namespace cuttle::report
