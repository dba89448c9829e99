#include "train/run_folder.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "cuttle/error.hpp"
#include "support/quadrants.hpp"

namespace {

using namespace cuttle;
using namespace cuttle::train;
using cuttle::test::TemporaryFolder;
namespace fs = std::filesystem;

void write(const std::string& file, const std::string& text) {
  fs::create_directories(fs::path(file).parent_path());
  std::ofstream(file) << text;
}

std::string read(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

void write_run(const std::string& folder, const std::string& text) {
  for (const std::string& file :
       {model_file_of(folder), state_file_of(folder), metrics_file_of(folder), report_file_of(folder)}) {
    write(file, text);
  }
}

bool is_run(const std::string& folder, const std::string& text) {
  return read(model_file_of(folder)) == text && read(state_file_of(folder)) == text &&
         read(metrics_file_of(folder)) == text && read(report_file_of(folder)) == text;
}

std::string begin(const std::string& folder, const std::string& text) {
  return begin_run_folder(folder, [&](const std::string& file) { write(file, text); });
}

}  // namespace

TEST_CASE("a new run puts the one in its folder into previous, as a whole, and an older one there goes") {
  const TemporaryFolder folder;
  const std::string run = folder / "run", previous = run + "/previous";
  CHECK(begin(run, "first").empty());
  CHECK(read(state_file_of(run)) == "first");
  CHECK(!fs::exists(previous));

  write_run(run, "first");
  write(run + "/notes.txt", "mine");
  CHECK(begin(run, "second") == previous);
  CHECK(is_run(previous, "first"));
  CHECK(read(state_file_of(run)) == "second");
  CHECK(!fs::exists(model_file_of(run)));
  CHECK(!fs::exists(metrics_file_of(run)));
  CHECK(!fs::exists(report_file_of(run)));
  CHECK(read(run + "/notes.txt") == "mine");

  write_run(run, "second");
  begin(run, "third");
  CHECK(is_run(previous, "second"));
}

TEST_CASE("a start that cannot write its state leaves the run in the folder and the previous one alone") {
  const TemporaryFolder folder;
  const std::string run = folder / "run";
  write_run(run, "good");
  write_run(run + "/previous", "older");
  CHECK_THROWS_AS(begin_run_folder(run, [](const std::string&) { throw IoError("the disk is full"); }), IoError);
  CHECK(is_run(run, "good"));
  CHECK(is_run(run + "/previous", "older"));
  CHECK(!fs::exists(run + "/starting"));
}

TEST_CASE(
    "a start that was killed while it moved the run is finished by the next one, and nothing of the run is lost") {
  const TemporaryFolder folder;
  const std::string run = folder / "run", previous = run + "/previous";
  write_run(run, "good");
  write_run(previous, "older");
  // Killed after two of the four renames.
  fs::create_directory(run + "/moving");
  fs::rename(report_file_of(run), run + "/moving/report.html");
  fs::rename(metrics_file_of(run), run + "/moving/metrics.jsonl");
  begin(run, "new");
  CHECK(is_run(previous, "good"));

  // Killed between the last rename and the removal of what previous held.
  write_run(run + "/moving", "better");
  fs::remove_all(run + "/state");
  CHECK(begin(run, "newer") == previous);
  CHECK(is_run(previous, "better"));
  CHECK(read(state_file_of(run)) == "newer");
}
