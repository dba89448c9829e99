#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cuttle/error.hpp"
#include "cuttle/memory.hpp"
#include "memory/caching_allocator.hpp"
#include "memory/host_usage.hpp"
#include "support/address_source.hpp"

using namespace cuttle;
using namespace cuttle::memory;
using cuttle::test::kGiB;

namespace {

/// A root directory with the files that Linux would show; gone with the object.
class FakeRoot {
 public:
  FakeRoot() {
    std::string name = (std::filesystem::temp_directory_path() / "cuttle-root-XXXXXX").string();
    REQUIRE(mkdtemp(name.data()));
    path_ = name;
  }
  ~FakeRoot() { std::filesystem::remove_all(path_); }
  FakeRoot(const FakeRoot&) = delete;
  FakeRoot& operator=(const FakeRoot&) = delete;

  void write(const std::string& file, const std::string& text) const {
    std::filesystem::create_directories((path_ / file).parent_path());
    std::ofstream(path_ / file) << text;
  }
  std::optional<SourceUsage> usage() const { return host_usage(path_); }

 private:
  std::filesystem::path path_;
};

constexpr const char* kMeminfo = "MemTotal:       8388608 kB\nMemFree:  1024 kB\nMemAvailable:    4194304 kB\n";

}  // namespace

TEST_CASE("host memory is aligned and writable to its last byte, and huge pages start at 2 MiB") {
  HostSource source;
  for (const std::size_t bytes : {std::size_t{1}, 4097 * std::size_t{1}, 2 * kMiB, 5 * kMiB + 512}) {
    CAPTURE(bytes);
    void* pointer = source.allocate(bytes);
    REQUIRE(pointer);
    CHECK(reinterpret_cast<std::uintptr_t>(pointer) % (bytes >= 2 * kMiB ? 2 * kMiB : 256) == 0);
    std::memset(pointer, 0xab, bytes);
    CHECK(static_cast<unsigned char*>(pointer)[bytes - 1] == 0xab);
    source.deallocate(pointer, bytes);
  }
}

TEST_CASE("the host refuses more than it has instead of promising it") {
  HostSource source;
  const SourceUsage usage = source.usage().value();
  CHECK(usage.free_bytes > 0);
  CHECK(usage.free_bytes <= usage.total_bytes);
  CHECK(usage.other_processes_bytes < usage.total_bytes);
  CHECK(source.allocate(usage.total_bytes + kMiB) == nullptr);
}

TEST_CASE("host usage is what /proc says") {
  FakeRoot root;
  root.write("proc/meminfo", kMeminfo);
  root.write("proc/self/statm", "1000 256 30 1 0 500 0\n");
  const SourceUsage usage = root.usage().value();
  CHECK(usage.total_bytes == 8 * kGiB);
  CHECK(usage.free_bytes == 4 * kGiB);
  CHECK(usage.other_processes_bytes == 4 * kGiB - 256 * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)));
}

TEST_CASE("where /proc says nothing, usage is unknown rather than nought") {
  CHECK_FALSE(FakeRoot().usage().has_value());
}

TEST_CASE("a container's limit counts, less the file pages that the kernel would drop") {
  FakeRoot root;
  root.write("proc/meminfo", kMeminfo);
  SUBCASE("control groups, version 2") {
    root.write("sys/fs/cgroup/memory.max", "2147483648\n");
    root.write("sys/fs/cgroup/memory.current", "1610612736\n");
    root.write("sys/fs/cgroup/memory.stat", "anon 1\ninactive_file 536870912\n");
  }
  SUBCASE("control groups, version 1") {
    root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "2147483648\n");
    root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "1610612736\n");
    root.write("sys/fs/cgroup/memory/memory.stat", "cache 1\ntotal_inactive_file 536870912\n");
  }
  CHECK(root.usage()->total_bytes == 2 * kGiB);
  CHECK(root.usage()->free_bytes == 1 * kGiB);
}

TEST_CASE("a container without a limit has the machine's memory") {
  FakeRoot root;
  root.write("proc/meminfo", kMeminfo);
  SUBCASE("control groups, version 2") {
    root.write("sys/fs/cgroup/memory.max", "max\n");
    root.write("sys/fs/cgroup/memory.current", "1610612736\n");
  }
  SUBCASE("control groups, version 1") {
    root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "1610612736\n");
  }
  CHECK(root.usage()->total_bytes == 8 * kGiB);
  CHECK(root.usage()->free_bytes == 4 * kGiB);
}

TEST_CASE("a capped source has room for its capacity and no more") {
  CappedSource source(std::make_unique<test::AddressSource>(), 10000);
  void* a = source.allocate(6000);
  REQUIRE(a);
  CHECK(source.allocate(4001) == nullptr);
  CHECK(source.allocate(SIZE_MAX) == nullptr);
  void* b = source.allocate(4000);
  REQUIRE(b);
  CHECK(source.usage()->free_bytes == 0);
  CHECK(source.usage()->total_bytes == 10000);
  source.deallocate(a, 6000);
  CHECK(source.usage()->free_bytes == 6000);
  CHECK(source.name() == "capped addresses");
  source.deallocate(b, 4000);
}

TEST_CASE("a device has one allocator, whoever asks first") {
  std::vector<CachingAllocator*> seen(4);
  std::vector<std::thread> threads;
  for (CachingAllocator*& mine : seen) threads.emplace_back([&mine] { mine = &allocator(kCpu); });
  for (std::thread& thread : threads) thread.join();
  for (const CachingAllocator* each : seen) CHECK(each == seen[0]);
}

TEST_CASE("a device that is not there has no allocator") {
  CHECK_THROWS_AS(allocator({DeviceKind::cpu, 1}), DeviceError);
  CHECK_THROWS_AS(allocator({DeviceKind::cpu, -1}), DeviceError);
  CHECK_THROWS_AS(allocator({DeviceKind::cuda, 1000}), DeviceError);
}

TEST_CASE("emptying the cache of all devices gives cached segments back") {
  CachingAllocator& cpu = allocator(kCpu);
  cuttle::empty_cache();
  const std::uint64_t before = cpu.stats().reserved_bytes;
  cpu.free(cpu.allocate(64 * kMiB));
  CHECK(cpu.stats().reserved_bytes == before + 64 * kMiB);
  CHECK(cuttle::empty_cache() == 64 * kMiB);
  CHECK(cpu.stats().reserved_bytes == before);
}
