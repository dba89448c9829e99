#include "core/text.hpp"

#include <doctest/doctest.h>

#include <limits>

using namespace cuttle;

TEST_CASE("sizes are written in the largest unit that keeps them above one") {
  CHECK(format_bytes(0) == "0 B");
  CHECK(format_bytes(1023) == "1023 B");
  CHECK(format_bytes(1024) == "1.00 KiB");
  CHECK(format_bytes(std::uint64_t{1536} << 10) == "1.50 MiB");
  CHECK(format_bytes(std::uint64_t{1904} << 20) == "1.86 GiB");
  CHECK(format_bytes(std::numeric_limits<std::uint64_t>::max()) == "16.00 EiB");
}

TEST_CASE("figures are written as people write them") {
  CHECK(human_count(0) == "0");
  CHECK(human_count(999) == "999");
  CHECK(human_count(1000) == "1,000");
  CHECK(human_count(1234567) == "1,234,567");
  CHECK(human_duration(59.6) == "1:00");
  CHECK(human_duration(3723) == "1:02:03");
}

TEST_CASE("well-formed UTF-8 is told from other bytes") {
  for (const char* text : {"", "seven", "caf\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf"}) {
    CAPTURE(text);
    CHECK(is_utf8(text));
  }
  // A lone byte, cut off, a start without its end, longer than needed, a surrogate, beyond the last character.
  for (const char* text : {"\xff", "\x80", "\xc3", "\xc3x", "\xc0\x80", "\xe0\x80\xaf", "\xed\xa0\x80",
                           "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80"}) {
    CAPTURE(text);
    CHECK(!is_utf8(text));
  }
}
