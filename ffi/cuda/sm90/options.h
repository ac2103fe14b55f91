// The kernel's options, each declared once: the kernel table's row, the options of a configuration and what a
// problem's options allow follow from this list. Host code only.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <span>
#include <string_view>
#include <vector>

#include "../planning.h"
#include "../rows.h"
#include "configs.h"

namespace jaxgemm::cuda::sm90 {

// What an option is about: tiles and orientations are passed over if the option does not allow them, clusters
// are asked for though they may not be considered otherwise, and the rest is set in each configuration. Slabs
// are what is left of a problem once it is cut into such.
enum class Scope : uint8_t { kTile, kOrientation, kCluster, kWalk, kLaunch, kSlabs };

struct OptionRow {
  const char* name;
  std::span<const int64_t> values;  // as in jaxgemm::Option: 0 leaves the option to the cost model
  Scope scope;
  int64_t (*of)(const Config& config);  // what it is in a configuration
};

// A value that means no or yes: 1 or 2.
constexpr int64_t no_or_yes(bool yes) { return yes ? 2 : 1; }

namespace option_values {
inline constexpr int64_t kTileM[] = {0, 64, 128, 192};
inline constexpr int64_t kTileN[] = {0, 16, 32, 64, 96, 112, 128, 144, 160, 192, 224, 256};
}  // namespace option_values

inline constexpr OptionRow kOptions[] = {
    // Of a gated product, `tile_n`, or where operands are swapped `tile_m`, counts both weights.
    {"tile_m", option_values::kTileM, Scope::kTile,
     [](const Config& c) { return int64_t{kTiles[c.tile].tile_m}; }},
    {"tile_n", option_values::kTileN, Scope::kTile,
     [](const Config& c) { return int64_t{kTiles[c.tile].tile_n}; }},
    {"schedule", kUpTo2, Scope::kTile,
     [](const Config& c) { return static_cast<int64_t>(kTiles[c.tile].schedule); }},
    {"cluster_m", kUpTo4, Scope::kCluster, [](const Config& c) { return int64_t{c.cluster_m}; }},
    {"cluster_n", kUpTo4, Scope::kCluster, [](const Config& c) { return int64_t{c.cluster_n}; }},
    {"split_k", {}, Scope::kLaunch, [](const Config& c) { return int64_t{c.split_k}; }},
    {"swap", kUpTo2, Scope::kOrientation, [](const Config& c) { return no_or_yes(c.swap); }},
    {"walk_height", {}, Scope::kWalk, [](const Config& c) { return int64_t{c.walk_height}; }},
    {"grid", kUpTo2, Scope::kLaunch, [](const Config& c) { return static_cast<int64_t>(c.grid); }},
    {"reduction", kUpTo2, Scope::kLaunch, [](const Config& c) { return static_cast<int64_t>(c.reduction); }},
    {"blocks", kUpTo2, Scope::kTile, [](const Config& c) { return int64_t{kTiles[c.tile].blocks}; }},
    // What becomes of an unaligned y: 1 copied, 2 shifted on its way.
    {"unaligned", kUpTo2, Scope::kTile, [](const Config& c) { return no_or_yes(kTiles[c.tile].realigns); }},
    {"every_eighth", kUpTo2, Scope::kTile,
     [](const Config& c) { return no_or_yes(kTiles[c.tile].every_eighth); }},
    {"tail", {}, Scope::kLaunch, [](const Config& c) { return int64_t{c.tail}; }},
    {"slabs", {}, Scope::kSlabs, [](const Config& c) { return int64_t{c.slabs}; }},
};
inline constexpr int kOptionCount = static_cast<int>(std::size(kOptions));

// An option's place in the list, by its name; a name that is not in the list does not compile.
struct OptionPlace {
  int index = 0;
  consteval OptionPlace(const char* name) {  // NOLINT: it is written as the name
    while (std::string_view(kOptions[index].name) != name) ++index;
  }
};

// What a problem fixes an option to; 0 where it does not.
inline int64_t fixed(const GemmProblem& p, OptionPlace option) { return cuda::fixed(p, option.index); }

// Whether the options of these scopes that the problem fixes are the configuration's.
inline bool options_allow(const GemmProblem& p, const Config& config, std::initializer_list<Scope> scopes) {
  for (int i = 0; i < kOptionCount; ++i) {
    if (std::find(scopes.begin(), scopes.end(), kOptions[i].scope) == scopes.end()) continue;
    const int64_t wanted = cuda::fixed(p, i);
    if (wanted && wanted != kOptions[i].of(config)) return false;
  }
  return true;
}

// The same for a launch of groups or of many products, where split_k, grid, reduction and tail have Config's
// defaults.
inline bool launch_allowed(const GemmProblem& p, const Config& config) {
  return options_allow(p, config, {Scope::kTile, Scope::kOrientation, Scope::kLaunch});
}

// A value for each option, in their order.
inline std::vector<int64_t> options_of(const Config& config) {
  std::vector<int64_t> values;
  for (const OptionRow& row : kOptions) values.push_back(row.of(config));
  return values;
}

// The most rows of clusters that a kernel counts in a swath.
constexpr int64_t kMaxWalkHeight = 1 << 20;
// What the problem fixes walk_height to, at most that; 0 where it leaves it open.
inline int fixed_walk_height(const GemmProblem& p) {
  return static_cast<int>(std::min(fixed(p, "walk_height"), kMaxWalkHeight));
}

}  // namespace jaxgemm::cuda::sm90
