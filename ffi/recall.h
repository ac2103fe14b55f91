// A cache, one for each thread, of what follows from a call's attributes. XLA runs both stages of a handler
// at every execution of a program, and the execute stage again when a captured buffer has moved. Decoding and
// planning a call each time would take longer than a small product.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <iterator>

#include "problem.h"

namespace jaxgemm {

constexpr size_t kProblemWords = 17;

// All fields of a problem, and two numbers of the caller's, as words to compare and to hash.
using ProblemKey = std::array<int64_t, kProblemWords + kMaxOptions>;

inline ProblemKey key_of(const GemmProblem& p, int64_t first, int64_t second) {
  const int64_t kinds[] = {static_cast<int64_t>(p.a.dtype),
                           static_cast<int64_t>(p.b.dtype),
                           static_cast<int64_t>(p.d),
                           p.a.transposed,
                           p.b.transposed,
                           p.has_c,
                           p.has_bias,
                           p.gated,
                           static_cast<int64_t>(p.activation)};
  // Each flag or enumeration gets six bits.
  static_assert(std::size(kElementTypes) <= 64 && std::size(kinds) * 6 <= 54 && kMaxOptions < 512);
  int64_t packed = static_cast<int64_t>(p.config.size());
  for (const int64_t kind : kinds) packed = packed << 6 | kind;
  ProblemKey key = {first,
                    second,
                    packed,
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
                    p.groups.count << 3 | static_cast<int64_t>(p.groups.form) << 1 | p.groups.sizes_batched};
  for (size_t i = 0; i < p.config.size() && i < kMaxOptions; ++i) key[kProblemWords + i] = p.config[i];
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
