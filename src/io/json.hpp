#pragma once
#include <fmt/format.h>

#include <concepts>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "cuttle/error.hpp"

namespace cuttle {

/// One line. Text that is not UTF-8, as a file's name may be, is written with replacement characters.
std::string to_text(const nlohmann::ordered_json& json);

/// What a JSON text or a value in it lacks, as a clause: "it is not JSON (at byte 7)", "key 'size' not found".
std::string reason_of(const nlohmann::json::exception& error);

/// The value under this key. get() would bend fractions and numbers beyond T into shape; here they are a
/// CheckpointError. Throws nlohmann's exception if there is no such key.
template <std::integral T> T whole_number(const nlohmann::ordered_json& json, const char* key) {
  using Limits = std::numeric_limits<T>;
  const nlohmann::ordered_json& value = json.at(key);
  if (value.is_number_unsigned() && std::in_range<T>(value.get<std::uint64_t>())) return value.get<T>();
  if (value.is_number_integer() && !value.is_number_unsigned() && std::in_range<T>(value.get<std::int64_t>())) {
    return value.get<T>();
  }
  throw CheckpointError(
      fmt::format("{} is {}, not a whole number from {} to {}", key, to_text(value), Limits::min(), Limits::max()));
}

}  // namespace cuttle
