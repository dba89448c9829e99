#include <doctest/doctest.h>

#include <sstream>

#include "train/console_sink.hpp"

namespace {

using namespace cuttle;
using namespace cuttle::train;

TEST_CASE("a pipe gets plain lines, a terminal a bar that fits its width") {
  StartEvent start;
  start.config.epochs = 2;
  start.steps_per_epoch = 10;
  const StepEvent step{.epoch = 1,
                       .step = 10,
                       .step_in_epoch = 10,
                       .loss = 0.5,
                       .images_per_s = 1234,
                       .peak_allocated_bytes = 1 << 20,
                       .peak_reserved_bytes = 2 << 20};
  const auto shown = [&](int columns) {
    std::ostringstream out;
    ConsoleSink sink(out, {.columns = columns, .resume_command = "again"});
    sink.started(start);
    sink.stepped(step);
    return out.str();
  };
  CHECK(shown(0).find('\r') == std::string::npos);
  CHECK(shown(0).find('\x1b') == std::string::npos);
  CHECK(shown(0).find("epoch 1/2  step 10/10") != std::string::npos);
  CHECK(shown(0).find("mem 1.00 MiB of 2.00 MiB reserved") != std::string::npos);
  CHECK(shown(120).find("████") != std::string::npos);
  const std::string narrow = shown(40);
  CHECK(narrow.substr(narrow.rfind("\x1b[K") + 3).size() < 40);
}

}  // namespace
