#include "conv/lru_cache.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

using namespace cuttle;

namespace {

using Cache = LruCache<int, std::string>;

std::vector<int> keys_of(const Cache& cache) {
  std::vector<int> keys;
  for (const auto& [key, entry] : cache) keys.push_back(key);
  return keys;
}

}  // namespace

TEST_CASE("LruCache: the entry that was not used for longest goes first, and is handed out") {
  Cache cache(3);
  std::vector<std::string> dropped;
  const auto put = [&](int key, const char* text) {
    return cache.insert(key, text, [&](std::string old) { dropped.push_back(std::move(old)); });
  };
  CHECK(put(1, "one") == "one");
  put(2, "two");
  put(3, "three");
  CHECK(keys_of(cache) == std::vector{3, 2, 1});
  REQUIRE(cache.find(1));
  CHECK(*cache.find(1) == "one");
  CHECK_FALSE(cache.find(4));
  put(4, "four");
  CHECK(dropped == std::vector<std::string>{"two"});
  CHECK(keys_of(cache) == std::vector{4, 1, 3});
  CHECK_FALSE(cache.find(2));
  cache.find(3)->append("!");
  cache.erase(1);
  cache.erase(1);
  CHECK(keys_of(cache) == std::vector{3, 4});
  put(5, "five");
  CHECK(dropped.size() == 1);
  CHECK(*cache.find(3) == "three!");
  CHECK(cache.size() == 3);
}

TEST_CASE("LruCache: sizes that vary without end keep no more than the bound") {
  LruCache<int, std::shared_ptr<int>> cache(10);
  std::vector<std::weak_ptr<int>> given;
  for (int i = 0; i < 1000; ++i) {
    const auto value = std::make_shared<int>(i);
    given.push_back(value);
    cache.insert(i, value, [](std::shared_ptr<int>) {});
    REQUIRE(cache.find(0) != nullptr);  // what is used stays
  }
  CHECK(cache.size() == 10);
  int alive = 0;
  for (const auto& value : given) alive += !value.expired();
  CHECK(alive == 10);
  CHECK_FALSE(given[0].expired());
}

TEST_CASE("LruCache: a dropped entry may look into the cache again") {
  Cache cache(1);
  cache.insert(1, "one", [](std::string) {});
  std::size_t size = 0;
  bool there = true;
  const std::string& two = cache.insert(2, "two", [&](std::string) {
    size = cache.size();
    there = cache.find(1) != nullptr;
  });
  CHECK(two == "two");
  CHECK(size == 1);
  CHECK_FALSE(there);
}
