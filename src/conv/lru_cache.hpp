#pragma once
#include <cstddef>
#include <functional>
#include <iterator>
#include <list>
#include <unordered_map>
#include <utility>

namespace cuttle {

/// The entries that were used last, at most so many. Not thread-safe.
template <class Key, class Entry, class Hash = std::hash<Key>> class LruCache {
 public:
  explicit LruCache(std::size_t most) : most_(most) {}

  /// The key's entry, or null. It counts as used.
  Entry* find(const Key& key) {
    const auto found = places_.find(key);
    if (found == places_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found->second);
    return &found->second->second;
  }

  /// The entry of a key that has none. Of more than `most` the one that was not used for longest goes, to `dropped`.
  template <class Dropped> Entry& insert(const Key& key, Entry entry, Dropped dropped) {
    entries_.emplace_front(key, std::move(entry));
    places_.emplace(key, entries_.begin());
    Entry& made = entries_.front().second;
    if (entries_.size() > most_) {
      const auto last = std::prev(entries_.end());
      places_.erase(last->first);
      Entry old = std::move(last->second);
      entries_.erase(last);
      dropped(std::move(old));
    }
    return made;
  }

  void erase(const Key& key) {
    const auto found = places_.find(key);
    if (found == places_.end()) return;
    entries_.erase(found->second);
    places_.erase(found);
  }

  std::size_t size() const { return entries_.size(); }
  /// Pairs of key and entry, the one used last first.
  auto begin() const { return entries_.begin(); }
  auto end() const { return entries_.end(); }

 private:
  using Entries = std::list<std::pair<const Key, Entry>>;
  std::size_t most_;
  Entries entries_;
  std::unordered_map<Key, typename Entries::iterator, Hash> places_;
};

}  // namespace cuttle
