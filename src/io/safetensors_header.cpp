#include "io/safetensors_header.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <unordered_set>
#include <utility>

#include "cuttle/error.hpp"
#include "io/json.hpp"

namespace cuttle {

namespace {

using nlohmann::json;

constexpr const char* kMetadata = "__metadata__";
constexpr const char* kCopyAgain = "copy the file again or take an older checkpoint";
constexpr std::array<std::pair<std::string_view, DType>, 7> kDtypes{{{"F32", DType::f32},
                                                                     {"F64", DType::f64},
                                                                     {"F16", DType::f16},
                                                                     {"BF16", DType::bf16},
                                                                     {"I32", DType::i32},
                                                                     {"I64", DType::i64},
                                                                     {"U8", DType::u8}}};

std::string_view format_name_of(DType dtype) {
  return std::ranges::find(kDtypes, dtype, &std::pair<std::string_view, DType>::second)->first;
}

/// What a JSON library forgets or forgives: the order of the names, and names that stand twice in one object.
class KeyWatcher {
 public:
  explicit KeyWatcher(const std::string& file) : file_(file) {}

  bool operator()(json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) open_.emplace_back();
    if (event == json::parse_event_t::object_end) open_.pop_back();
    if (event == json::parse_event_t::key) {
      const std::string& key = value.get_ref<const std::string&>();
      if (!open_.back().insert(key).second) {
        throw CheckpointError(fmt::format("'{}' has the name '{}' twice in its header", file_, key), kCopyAgain);
      }
      if (open_.size() == 1) names_.push_back(key);
    }
    return true;
  }
  std::vector<std::string> names() { return std::move(names_); }

 private:
  const std::string& file_;
  std::vector<std::unordered_set<std::string>> open_;  // the keys of each object that is not closed yet
  std::vector<std::string> names_;                     // of the outermost object
};

/// Parses the entries of one file; every complaint names the file and the tensor.
class HeaderParser {
 public:
  explicit HeaderParser(const std::string& file) : file_(file) {}

  SafetensorsHeader parse(std::string_view text) {
    KeyWatcher watcher(file_);
    json root;
    try {
      root = json::parse(text, [&](int, json::parse_event_t event, json& value) { return watcher(event, value); });
    } catch (const json::exception& error) {
      throw CheckpointError(fmt::format("'{}' has a header that cannot be read: {}", file_, reason_of(error)),
                            kCopyAgain);
    }
    if (!root.is_object())
      throw CheckpointError(fmt::format("'{}' has a header that is not a JSON object", file_), kCopyAgain);
    SafetensorsHeader header;
    for (const std::string& name : watcher.names()) {
      if (name == kMetadata) {
        header.metadata = metadata(root[name]);
      } else {
        header.tensors.push_back(entry(name, root[name]));
      }
    }
    return header;
  }

 private:
  [[noreturn]] void fail(const std::string& name, const std::string& what) const {
    throw CheckpointError(fmt::format("'{}': tensor '{}' {}", file_, name, what), kCopyAgain);
  }

  std::map<std::string, std::string> metadata(const json& value) const {
    std::map<std::string, std::string> result;
    const bool texts = value.is_object() && std::ranges::all_of(value, [](const json& v) { return v.is_string(); });
    if (!texts)
      throw CheckpointError(fmt::format("'{}' has a {} that is not an object of texts", file_, kMetadata), kCopyAgain);
    for (const auto& [key, text] : value.items()) result[key] = text.get<std::string>();
    return result;
  }

  TensorEntry entry(const std::string& name, const json& value) const {
    if (!value.is_object() || value.size() != 3 || !value.contains("dtype") || !value.contains("shape") ||
        !value.contains("data_offsets")) {
      fail(name, "is not described by dtype, shape and data_offsets");
    }
    TensorEntry result;
    result.name = name;
    result.dtype = dtype(name, value["dtype"]);
    result.shape = shape(name, value["shape"]);
    const std::vector<std::uint64_t> offsets = numbers(name, "data_offsets", value["data_offsets"]);
    if (offsets.size() != 2 || offsets[0] > offsets[1]) fail(name, "has data_offsets that are not [begin, end]");
    result.begin = offsets[0];
    result.end = offsets[1];
    check_size(result);
    return result;
  }

  DType dtype(const std::string& name, const json& value) const {
    if (!value.is_string()) fail(name, "has a dtype that is not a text");
    const auto& text = value.get_ref<const std::string&>();
    const auto found = std::ranges::find(kDtypes, text, &std::pair<std::string_view, DType>::first);
    if (found == kDtypes.end()) {
      fail(name, fmt::format("has dtype '{}', not one of F32, F64, F16, BF16, I32, I64, U8", text));
    }
    return found->second;
  }

  std::vector<std::uint64_t> numbers(const std::string& name, const char* what, const json& value) const {
    if (!value.is_array()) fail(name, fmt::format("has {} that are not a list", what));
    std::vector<std::uint64_t> result;
    for (const json& number : value) {
      if (!number.is_number_unsigned()) {
        fail(name, fmt::format("has {} with {}, not a whole number from 0 to 2^64-1", what, number.dump()));
      }
      result.push_back(number.get<std::uint64_t>());
    }
    return result;
  }

  Shape shape(const std::string& name, const json& value) const {
    const std::vector<std::uint64_t> sizes = numbers(name, "shape", value);
    if (sizes.size() > Shape::kMaxRank) {
      fail(name, fmt::format("has rank {}, more than {}", sizes.size(), Shape::kMaxRank));
    }
    std::vector<std::int64_t> checked;
    for (const std::uint64_t size : sizes) {
      if (size > std::numeric_limits<std::int64_t>::max()) fail(name, fmt::format("has the impossible size {}", size));
      checked.push_back(static_cast<std::int64_t>(size));
    }
    return Shape(checked);
  }

  void check_size(const TensorEntry& entry) const {
    std::uint64_t bytes = size_of(entry.dtype);
    for (const std::int64_t size : entry.shape) {  // zeros left out: a part of the product must not overflow either
      if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1)), &bytes)) {
        fail(entry.name, fmt::format("has shape {}, whose product overflows", entry.shape.str()));
      }
    }
    if (std::ranges::find(entry.shape, 0) != entry.shape.end()) bytes = 0;
    if (bytes != entry.end - entry.begin) {
      fail(entry.name, fmt::format("{}{} needs {} bytes, but its offsets [{}, {}) hold {}", format_name_of(entry.dtype),
                                   entry.shape.str(), bytes, entry.begin, entry.end, entry.end - entry.begin));
    }
  }

  const std::string& file_;
};

void check_coverage(const std::string& file, const SafetensorsHeader& header, std::uint64_t data_bytes) {
  std::vector<const TensorEntry*> order;
  for (const TensorEntry& entry : header.tensors) order.push_back(&entry);
  std::ranges::sort(order, {}, [](const TensorEntry* e) { return std::pair(e->begin, e->end); });
  std::uint64_t covered = 0;
  for (const TensorEntry* entry : order) {
    if (entry->begin != covered) {
      throw CheckpointError(
          fmt::format("'{}': the data of tensor '{}' begins at {}, which {} what ends at {}", file, entry->name,
                      entry->begin, entry->begin < covered ? "overlaps" : "leaves a gap to", covered),
          kCopyAgain);
    }
    covered = entry->end;
  }
  if (covered != data_bytes) {
    throw CheckpointError(
        fmt::format("'{}' {}: its header describes {} bytes of data, {} are there", file,
                    covered > data_bytes ? "is truncated" : "has trailing bytes", covered, data_bytes),
        kCopyAgain);
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(const std::string& file, std::string_view text, std::uint64_t data_bytes) {
  SafetensorsHeader header = HeaderParser(file).parse(text);
  check_coverage(file, header, data_bytes);
  return header;
}

std::string format_safetensors_header(const SafetensorsHeader& header) {
  nlohmann::ordered_json root = nlohmann::ordered_json::object();
  if (!header.metadata.empty()) root[kMetadata] = header.metadata;
  std::unordered_set<std::string> names{kMetadata};
  for (const TensorEntry& entry : header.tensors) {
    if (!names.insert(entry.name).second) {
      throw UsageError(fmt::format("two tensors of one file cannot both be named '{}'", entry.name));
    }
    root.push_back({entry.name,
                    {{"dtype", format_name_of(entry.dtype)},
                     {"shape", std::vector(entry.shape.begin(), entry.shape.end())},
                     {"data_offsets", {entry.begin, entry.end}}}});
  }
  std::string text;
  try {
    text = root.dump();
  } catch (const nlohmann::json::exception& error) {
    throw UsageError(
        fmt::format("a name or metadata text of a safetensors file cannot be written: {}", reason_of(error)));
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace cuttle
