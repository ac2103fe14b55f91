// A cache, one for each thread, of what follows from a call's attributes. XLA runs both stages of a handler
// at every execution of a program, and the execute stage again when a captured buffer has moved. Decoding and
// planning a call each time would take longer than a small product.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <span>

#include "problem.h"

namespace jaxgemm {

// Words to compare and to hash. Two keys are equal when the same words were added in the same order.
template <size_t kRoom>
class Words {
 public:
  void add(int64_t word) {
    if (count_ < kRoom) words_[count_] = word;
    ++count_;
  }
  void add(std::span<const int64_t> words) {
    if (count_ + words.size() <= kRoom) std::ranges::copy(words, words_.begin() + count_);
    count_ += words.size();
  }
  // False when more were added than there is room for: some of them are lost.
  bool fits() const { return count_ <= kRoom; }

  const int64_t* begin() const { return words_.data(); }
  const int64_t* end() const { return words_.data() + count_; }
  bool operator==(const Words& other) const {
    return count_ == other.count_ && std::equal(begin(), end(), other.begin());
  }

 private:
  std::array<int64_t, kRoom> words_;  // what is behind the last of them is not read
  size_t count_ = 0;
};

// All fields of a problem, and two numbers of the caller's. Flags and enumerations have a byte each, of which
// there are kKindWords words.
constexpr size_t kKindWords = 2, kNumberWords = 16;
using ProblemKey = Words<kKindWords + kNumberWords + kMaxOptions>;

inline ProblemKey key_of(const GemmProblem& p, int64_t first, int64_t second) {
  const auto byte = [](auto kind) {
    static_assert(sizeof(kind) == 1);
    return static_cast<uint8_t>(kind);
  };
  const std::array<uint8_t, 8 * kKindWords> kinds = {byte(p.a.dtype),
                                                     byte(p.b.dtype),
                                                     byte(p.d),
                                                     byte(p.c),
                                                     byte(p.bias),
                                                     byte(p.arithmetic),
                                                     byte(p.activation),
                                                     byte(p.groups.form),
                                                     p.groups.sizes_batched,
                                                     p.a.transposed,
                                                     p.b.transposed,
                                                     p.has_c,
                                                     p.has_bias,
                                                     p.gated,
                                                     byte(p.a_scale),
                                                     byte(p.b_scale)};
  const auto kind_words = std::bit_cast<std::array<int64_t, kKindWords>>(kinds);
  const std::array<int64_t, kNumberWords> numbers = {first,
                                                     second,
                                                     p.m,
                                                     p.n,
                                                     p.k,
                                                     p.batch[0],
                                                     p.batch[1],
                                                     p.a.ld,
                                                     p.a.batch_stride[0],
                                                     p.a.batch_stride[1],
                                                     p.b.ld,
                                                     p.b.batch_stride[0],
                                                     p.b.batch_stride[1],
                                                     std::bit_cast<int64_t>(p.alpha),
                                                     std::bit_cast<int64_t>(p.beta),
                                                     p.groups.count};
  ProblemKey key;
  key.add(kind_words);
  key.add(numbers);
  key.add(p.config);
  return key;
}

// A direct-mapped cache for one thread: a key's hash selects an entry, and a new value replaces the entry's
// old one.
template <typename Value, typename Key = ProblemKey>
class Recall {
 public:
  // The value that make() gives for this key; make() is called only if the cache does not hold it.
  template <typename Make>
  Value& operator()(const Key& key, Make&& make) {
    // Each word has its own factor, so that no multiplication waits for another.
    constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;
    uint64_t hash = 0, factor = kGolden;
    for (const int64_t x : key) {
      hash += static_cast<uint64_t>(x) * factor;
      factor += 2 * kGolden;
    }
    hash ^= hash >> 32;
    Entry& entry = entries_[(hash ^ hash >> 16) % entries_.size()];
    if (!entry.valid || !(entry.key == key)) entry = {true, key, make()};
    return entry.value;
  }

 private:
  struct Entry {
    bool valid = false;
    Key key{};
    Value value{};
  };
  std::array<Entry, 128> entries_;
};

}  // namespace jaxgemm
