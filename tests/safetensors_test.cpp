#include <doctest/doctest.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <numeric>
#include <thread>

#include "cuttle/error.hpp"
#include "cuttle/serialization.hpp"
#include "io/atomic_file.hpp"
#include "support/source_folder.hpp"
#include "support/temporary_folder.hpp"

using namespace cuttle;
using Bytes = std::vector<std::uint8_t>;

namespace {

Bytes safetensors(const std::string& json, std::size_t data_bytes) {
  const std::uint64_t length = json.size();
  Bytes bytes(sizeof length + json.size() + data_bytes);
  std::memcpy(bytes.data(), &length, sizeof length);
  std::memcpy(bytes.data() + sizeof length, json.data(), json.size());
  return bytes;
}

/// The cause of the CheckpointError that loading these bytes throws; it must name the file.
std::string cause(const Bytes& bytes) {
  const TemporaryFolder folder;
  const std::string file = folder.file("model.safetensors");
  write_bytes(file, bytes);
  try {
    load_safetensors(file);
  } catch (const CheckpointError& error) {
    CHECK_MESSAGE(error.cause().find(file) != std::string::npos, error.cause());
    return error.cause();
  }
  FAIL_CHECK("no CheckpointError");
  return {};
}

std::string cause(const std::string& json, std::size_t data_bytes) { return cause(safetensors(json, data_bytes)); }

/// One tensor "a" with the given JSON values.
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return fmt::format(R"({{"a":{{"dtype":{},"shape":{},"data_offsets":{}}}}})", dtype, shape, offsets);
}

void contains(const std::string& text, const std::string& part) {
  INFO(text);
  CHECK(text.find(part) != std::string::npos);
}

std::vector<double> ramp(int count) {
  std::vector<double> values;
  for (int i = 0; i < count; ++i) values.push_back((i * 3 - 5) / 4.0);
  return values;
}

const Tensor& find(const SafetensorsFile& file, const std::string& name) {
  for (const auto& entry : file.tensors) {
    if (entry.name == name) return entry.tensor;
  }
  throw std::out_of_range(name);
}

std::vector<nn::NamedTensor> two_vectors(int mark, std::int64_t length) {
  const auto value = static_cast<double>(mark);
  return {{"a", Tensor::full({length}, value)}, {"b", Tensor::full({length}, value, {.dtype = DType::f64})}};
}

/// The mark that every element of a file of two_vectors() holds; -1 where they differ.
int mark_of(const std::string& file) {
  const SafetensorsFile loaded = load_safetensors(file);
  const auto a = find(loaded, "a").to_vector<double>(), b = find(loaded, "b").to_vector<double>();
  const auto equal = [&](const std::vector<double>& v) {
    return std::all_of(v.begin(), v.end(), [&](double x) { return x == a[0]; });
  };
  return equal(a) && equal(b) ? static_cast<int>(a[0]) : -1;
}

std::size_t files_in(const TemporaryFolder& folder) {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder.path()), {}));
}

/// Runs `work` in a child process and returns its exit status.
int in_child(const std::function<int()>& work) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) _exit(work());
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

}  // namespace

TEST_CASE("a file of the Python package is read: every dtype, ranks 0 to 4, metadata") {
  const auto file = load_safetensors(source_folder() + "/tests/golden/from_python.safetensors");
  CHECK(file.metadata == std::map<std::string, std::string>{{"format", "pt"}, {"note", "grüße"}});
  CHECK(file.tensors.size() == 8);

  const auto check = [&](const char* name, DType dtype, const Shape& shape, const std::vector<double>& values) {
    CAPTURE(name);
    const Tensor& tensor = find(file, name);
    CHECK(tensor.dtype() == dtype);
    CHECK(tensor.shape() == shape);
    CHECK(tensor.to_vector<double>() == values);
  };
  check("conv.weight", DType::f32, {2, 3, 2, 2}, ramp(24));
  check("fc.weight", DType::f64, {2, 5}, ramp(10));
  check("half", DType::f16, {7}, ramp(7));
  check("brain", DType::bf16, {7}, ramp(7));
  check("ints", DType::i32, {1, 2, 3}, {-3, -2, -1, 0, 1, 2});
  check("num_batches_tracked", DType::i64, {}, {0x1p40});
  check("bytes", DType::u8, {6}, {250, 251, 252, 253, 254, 255});
  check("empty", DType::f32, {0, 4}, {});
}

TEST_CASE("what is saved is loaded: names in order, dtypes, shapes, values, metadata") {
  const TemporaryFolder folder;
  const std::string file = folder.file("a.safetensors");
  const std::map<std::string, std::string> metadata{{"model", "lenet"}, {"text", "quote \" and \n line, ü"}};
  std::vector<float> values(2 * 3 * 4 * 5);
  std::iota(values.begin(), values.end(), 0.0f);
  const std::vector<nn::NamedTensor> tensors{
      {"z", Tensor::full({3}, 7, {.dtype = DType::u8})},  // first, so that what follows would be misaligned
      {"nhwc", Tensor::from(values, {2, 3, 4, 5}, {.layout = Layout::nhwc})},
      {"nchw", Tensor::from(values, {2, 3, 4, 5}, {.layout = Layout::nchw})},
      {"half", Tensor::full({5}, 0.1, {.dtype = DType::f16})},
      {"count", Tensor::scalar(123456789, {.dtype = DType::i64})},
      {"none", Tensor::zeros({0, 3, 2, 2})},
      {"a name with \"quotes\" and é", Tensor::zeros({1})}};
  save_safetensors(file, tensors, metadata);

  const SafetensorsFile loaded = load_safetensors(file);
  CHECK(loaded.metadata == metadata);
  REQUIRE(loaded.tensors.size() == tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    CAPTURE(tensors[i].name);
    CHECK(loaded.tensors[i].name == tensors[i].name);
    CHECK(loaded.tensors[i].tensor.dtype() == tensors[i].tensor.dtype());
    CHECK(loaded.tensors[i].tensor.shape() == tensors[i].tensor.shape());
    CHECK(loaded.tensors[i].tensor.to_vector<double>() == tensors[i].tensor.to_vector<double>());
  }
  CHECK(files_in(folder) == 1);
}

TEST_CASE("4-D tensors lie in logical order in the file and every tensor is aligned") {
  const TemporaryFolder folder;
  const std::string file = folder.file("a.safetensors");
  std::vector<float> values(1 * 3 * 2 * 2);
  std::iota(values.begin(), values.end(), 1.0f);
  save_safetensors(file, {{"u", Tensor::zeros({1}, {.dtype = DType::u8})}, {"w", Tensor::from(values, {1, 3, 2, 2})}});
  const Bytes bytes = read_bytes(file);
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  CHECK(length % 8 == 0);
  REQUIRE(bytes.size() == 8 + length + 12 * sizeof(float) + 1);
  std::vector<float> stored(12);
  std::memcpy(stored.data(), bytes.data() + 8 + length, 12 * sizeof(float));
  CHECK(stored == values);
}

TEST_CASE("a file of no tensors, and saving over a file, keep to the format") {
  const TemporaryFolder folder;
  const std::string file = folder.file("a.safetensors");
  save_safetensors(file, {});
  CHECK(load_safetensors(file).tensors.empty());
  save_safetensors(file, two_vectors(5, 10));
  CHECK(mark_of(file) == 5);
}

TEST_CASE("saving refuses names that the format cannot hold, before it touches the file") {
  const TemporaryFolder folder;
  const std::string file = folder.file("a.safetensors");
  save_safetensors(file, two_vectors(1, 4));
  const Tensor t = Tensor::zeros({1});
  CHECK_THROWS_WITH_AS(save_safetensors(file, {{"x", t}, {"x", t}}), doctest::Contains("'x'"), UsageError);
  CHECK_THROWS_AS(save_safetensors(file, {{"__metadata__", t}}), UsageError);
  CHECK_THROWS_AS(save_safetensors(file, {{"\xff\xfe", t}}), UsageError);
  CHECK_THROWS_AS(save_safetensors(file, {{"x", Tensor()}}), Error);
  CHECK(mark_of(file) == 1);
  CHECK(files_in(folder) == 1);
}

TEST_CASE("a checkpoint cut off at any byte is an error") {
  const TemporaryFolder folder;
  const std::string file = folder.file("a.safetensors");
  save_safetensors(file, two_vectors(3, 5), {{"model", "lenet"}});
  const Bytes whole = read_bytes(file);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    CAPTURE(length);
    cause(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length)));
  }
}

TEST_CASE("a changed byte of a header is an error or changes a name or text, never the data") {
  const TemporaryFolder folder;
  const std::string file = folder.file("a.safetensors");
  save_safetensors(file, two_vectors(3, 5), {{"model", "lenet"}});
  const Bytes whole = read_bytes(file);
  std::uint64_t length = 0;
  std::memcpy(&length, whole.data(), sizeof length);
  for (std::size_t at = 0; at < 8 + length; ++at) {
    CAPTURE(at);
    Bytes changed = whole;
    changed[at] ^= static_cast<std::uint8_t>(1 + at % 7);
    write_bytes(file, changed);
    std::vector<nn::NamedTensor> tensors;
    try {
      tensors = load_safetensors(file).tensors;
    } catch (const CheckpointError&) {
      continue;
    }
    REQUIRE(tensors.size() == 2);
    for (const auto& [name, tensor] : tensors) CHECK(tensor.to_vector<double>() == std::vector<double>(5, 3.0));
  }
}

TEST_CASE("missing files and folders are no checkpoints") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH_AS(load_safetensors(folder.file("no")), doctest::Contains("is not there"), CheckpointError);
  CHECK_THROWS_WITH_AS(load_safetensors(folder.path()), doctest::Contains("is not a file"), CheckpointError);
}

TEST_CASE("a header length beyond the file is refused without allocating it") {
  for (const std::uint64_t length :
       {std::uint64_t{100}, std::uint64_t{1} << 40, std::uint64_t{1} << 63, ~std::uint64_t{0}}) {
    Bytes bytes = safetensors("{}", 0);
    std::memcpy(bytes.data(), &length, sizeof length);
    contains(cause(bytes), fmt::format("claims a header of {} bytes, but has 10", length));
  }
}

TEST_CASE("a header that is no JSON object is refused") {
  contains(cause("", 0), "not JSON");
  contains(cause("{", 0), "not JSON");
  contains(cause("{} x", 0), "not JSON");
  contains(cause("{\"\xff\": 1}", 0), "not JSON");
  contains(cause("[]", 0), "not a JSON object");
  contains(cause("7", 0), "not a JSON object");
  contains(cause(std::string(100000, '['), 0), "not JSON");
  contains(cause(R"({"a":1})", 0), "'a' is not described by");
  contains(cause(R"({"a":{"dtype":"F32","shape":[]}})", 4), "'a' is not described by");
  contains(cause(R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4],"more":1}})", 4), "'a' is not described by");
}

TEST_CASE("names that stand twice are found, of tensors and within one") {
  const std::string entry = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  contains(cause(R"({"a":)" + entry + R"(,"a":)" + entry + "}", 4), "the name 'a' twice");
  contains(cause(R"({"a":{"dtype":"F64","dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4), "'dtype' twice");
  contains(cause(R"({"__metadata__":{"k":"1","k":"2"}})", 0), "'k' twice");
}

TEST_CASE("offsets that are negative, fractional, reversed, overlap, leave gaps or end early are refused") {
  contains(cause(one(R"("F32")", "[1]", "[-4,0]"), 4), "data_offsets with -4");
  contains(cause(one(R"("F32")", "[1]", "[0,4.0]"), 4), "data_offsets with 4.0");
  contains(cause(one(R"("F32")", "[1]", R"(["0",4])"), 4), "data_offsets with \"0\"");
  contains(cause(one(R"("F32")", "[1]", "[0,99999999999999999999]"), 4), "data_offsets with");
  contains(cause(one(R"("F32")", "[1]", "[4,0]"), 4), "not [begin, end]");
  contains(cause(one(R"("F32")", "[1]", "[0]"), 4), "not [begin, end]");
  contains(cause(one(R"("F32")", "[1]", "[0,4,8]"), 4), "not [begin, end]");
  contains(cause(one(R"("F32")", "[1]", "7"), 4), "not a list");
  contains(cause(one(R"("F32")", "[1]", "[4,8]"), 8), "leaves a gap");
  contains(cause(one(R"("F32")", "[1]", "[18446744073709551612,18446744073709551615]"), 4), "needs 4 bytes");
  contains(cause(one(R"("F32")", "[1]", "[0,4]"), 8), "trailing bytes");
  contains(cause(one(R"("F32")", "[2]", "[0,8]"), 4), "truncated");

  const auto two = [](int begin, int end) {
    return fmt::format(R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}},)"
                       R"("b":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}}}})",
                       end - begin, begin, end);
  };
  contains(cause(two(2, 8), 8), "overlaps");
  contains(cause(two(0, 4), 4), "overlaps");
  contains(cause(two(5, 8), 8), "leaves a gap");
}

TEST_CASE("dtypes and shapes that do not fit are refused") {
  contains(cause(one(R"("F8_E4M3")", "[4]", "[0,4]"), 4), "dtype 'F8_E4M3'");
  contains(cause(one(R"("f32")", "[1]", "[0,4]"), 4), "dtype 'f32'");
  contains(cause(one("4", "[1]", "[0,4]"), 4), "not a text");
  contains(cause(one(R"("F32")", "[2]", "[0,4]"), 4), "needs 8 bytes");
  contains(cause(one(R"("F64")", "[1]", "[0,4]"), 4), "needs 8 bytes");
  contains(cause(one(R"("F32")", "[-1]", "[0,4]"), 4), "shape with -1");
  contains(cause(one(R"("F32")", "[1,1,1,1,1,1,1]", "[0,4]"), 4), "rank 7");
  contains(cause(one(R"("F32")", "[4294967296,4294967296]", "[0,0]"), 0), "product overflows");
  contains(cause(one(R"("F32")", "[0,4294967296,4294967296]", "[0,0]"), 0), "product overflows");
  contains(cause(one(R"("F32")", "[4611686018427387904]", "[0,0]"), 0), "product overflows");
  contains(cause(one(R"("U8")", "[9223372036854775808]", "[0,0]"), 0), "impossible size");
  contains(cause(one(R"("F32")", "[1000000000000]", "[0,4000000000000]"), 4), "truncated");
}

TEST_CASE("metadata must be an object of texts") {
  contains(cause(R"({"__metadata__":{"epoch":3}})", 0), "object of texts");
  contains(cause(R"({"__metadata__":["a"]})", 0), "object of texts");
  contains(cause(R"({"__metadata__":null})", 0), "object of texts");
}

TEST_CASE("a file is written whole, over an old one too, and leaves nothing beside it") {
  const TemporaryFolder folder;
  const std::string file = folder.file("report.html");
  write_file_atomically(file, "first and longer");
  write_bytes(file + ".tmp", Bytes(1000, 'x'));  // what a killed process leaves behind
  std::filesystem::permissions(file, std::filesystem::perms(0640));
  write_file_atomically(file, "second");
  const Bytes content = read_bytes(file);
  CHECK(std::string(content.begin(), content.end()) == "second");
  CHECK(std::filesystem::status(file).permissions() == std::filesystem::perms(0640));
  CHECK(files_in(folder) == 1);
}

TEST_CASE("a place that cannot be written is an IoError with the system's reason") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH_AS(write_file_atomically(folder.file("no/file"), "x"), doctest::Contains("No such file"), IoError);
  CHECK_THROWS_WITH_AS(write_file_atomically(folder.path(), "x"), doctest::Contains("not a file"), IoError);
  CHECK_THROWS_WITH_AS(write_file_atomically("/dev/full", "x"), doctest::Contains("not a file"), IoError);
  write_bytes(folder.file("plain"), Bytes(1));
  CHECK_THROWS_WITH_AS(write_file_atomically(folder.file("plain/file"), "x"), doctest::Contains("Not a directory"),
                       IoError);
}

TEST_CASE("a full disk leaves the old checkpoint and no debris") {
  const TemporaryFolder folder;
  const std::string file = folder.file("model.safetensors");
  save_safetensors(file, two_vectors(1, 1000));
  const auto larger = two_vectors(2, 100000);
  // A limit on the size of files stops the write part of the way, as a full disk does.
  const int status = in_child([&] {
    const rlimit limit{65536, 65536};
    std::signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return 2;
    try {
      save_safetensors(file, larger);
    } catch (const IoError& error) {
      return error.cause().find("File too large") == std::string::npos ? 3 : 0;
    }
    return 4;
  });
  CHECK(status == 0);
  CHECK(mark_of(file) == 1);
  CHECK(files_in(folder) == 1);
}

TEST_CASE("kill -9 at any moment of a save leaves a whole checkpoint") {
  const TemporaryFolder folder;
  const std::string file = folder.file("model.safetensors");
  constexpr std::int64_t kLength = 20000;
  save_safetensors(file, two_vectors(0, kLength));
  for (int round = 0; round < 40; ++round) {
    CAPTURE(round);
    int progress[2];
    REQUIRE(pipe(progress) == 0);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      for (int i = 1; i < 1000; ++i) {
        save_safetensors(file, two_vectors(i, kLength));
        if (write(progress[1], "s", 1) != 1) _exit(1);
      }
      _exit(1);
    }
    close(progress[1]);
    const int saves = 1 + round % 3;
    for (int i = 0; i < saves; ++i) {
      char done = 0;
      REQUIRE(read(progress[0], &done, 1) == 1);
    }
    // Into the next save: round by round, later in the growth of the temporary file or after it.
    const std::uintmax_t grown = static_cast<std::uintmax_t>(round) * 5000;
    for (int looks = 0; looks < 1000; ++looks) {
      std::error_code gone;
      const std::uintmax_t size = std::filesystem::file_size(file + ".tmp", gone);
      if (!gone && size >= grown) break;
    }
    REQUIRE(kill(child, SIGKILL) == 0);
    REQUIRE(waitpid(child, nullptr, 0) == child);
    close(progress[0]);
    CHECK(mark_of(file) >= saves);
  }
  save_safetensors(file, two_vectors(7, 10));
  CHECK(mark_of(file) == 7);
  CHECK(files_in(folder) == 1);
}

TEST_CASE("writers of one file at the same time each write it whole") {
  const TemporaryFolder folder;
  const std::string file = folder.file("metrics");
  std::vector<std::thread> writers;
  for (int w = 0; w < 4; ++w) {
    writers.emplace_back([&file, w] {
      for (int i = 0; i < 20; ++i) {
        write_file_atomically(file, std::string(static_cast<std::size_t>(1000 * (w + 1)), static_cast<char>('a' + w)));
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  const Bytes content = read_bytes(file);
  REQUIRE(!content.empty());
  CHECK(content == Bytes(1000u * (content[0] - 'a' + 1u), content[0]));
  CHECK(files_in(folder) == 1);
}
