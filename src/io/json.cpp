#include "io/json.hpp"

namespace cuttle {

std::string to_text(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string reason_of(const nlohmann::json::exception& error) {
  constexpr int kNotUtf8 = 316;
  if (const auto* parse = dynamic_cast<const nlohmann::json::parse_error*>(&error)) {
    return fmt::format("it is not JSON (at byte {})", parse->byte);
  }
  if (error.id == kNotUtf8) return "a text in it is not UTF-8";
  // The library's own sentence stands behind "[json.exception.KIND.ID] ".
  const std::string text = error.what();
  const std::size_t mark = text.find("] ");
  return mark == std::string::npos ? text : text.substr(mark + 2);
}

}  // namespace cuttle
