#pragma once
#include <cstdint>
#include <string>

/// Figures as people write them.
namespace cuttle {

/// "512 B", "1.86 GiB"
std::string format_bytes(std::uint64_t bytes);
/// "1:02:03" or "2:03".
std::string human_duration(double seconds);
/// "421,642"
std::string human_count(std::int64_t n);

}  // namespace cuttle
