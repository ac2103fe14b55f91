// From a configuration chosen at run time to an instantiation of the engine. Each file that includes this
// instantiates one operand type and one pair of majors, or one type of gated products, so that they compile
// side by side.
#pragma once

#include <utility>

#include "kernel.cuh"
#include "launch.h"
#include "many.cuh"

namespace jaxgemm::cuda::sm90 {

template <typename E>
constexpr auto kernel_of() {
  if constexpr (E::kIsMany)
    return &many_sm90<E>;
  else
    return &gemm_sm90<E>;
}

template <typename E>
Status launch_engine(const typename E::Parameters& params, const Launch& launch) {
  constexpr auto kernel = kernel_of<E>();
  if (launch.prepare) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, E::kSharedBytes);
    if (error != cudaSuccess) return {std::string("preparing kernel 'sm90': ") + cudaGetErrorString(error)};
    return {};
  }
  cudaLaunchAttribute attributes[2];
  int count = 0;
  if (launch.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {static_cast<unsigned>(launch.cluster), 1, 1};
  }
  if (launch.after_repack) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = launch.blocks;
  config.blockDim = dim3(E::kThreads);
  config.dynamicSmemBytes = E::kSharedBytes;
  config.stream = launch.stream;
  config.attrs = attributes;
  config.numAttrs = static_cast<unsigned>(count);
  cudaLaunchKernelEx(&config, kernel, params);
  return launch_status("sm90");
}

template <typename In, Major kX, Major kY>
Status launch_tiles(const Params& params, const Launch& launch) {
  Status status{"internal error: no such tile in kernel 'sm90'"};
  const auto launch_tile = [&]<int kTile>() {
    if constexpr (has_majors(kTiles[kTile], kX, kY)) {
      if (kTile == launch.tile) {
        using E = Engine<kTiles[kTile], kX, kY, In>;
        status = launch_engine<E>(static_cast<const typename E::Parameters&>(params), launch);
      }
    }
  };
  [&]<int... kTile>(std::integer_sequence<int, kTile...>) {
    (launch_tile.template operator()<kTile>(), ...);
  }(std::make_integer_sequence<int, kPlainTileCount>{});
  return status;
}

// Gated tiles are compiled for row-major operands only: weights are k x n, the other operand m x k.
template <TileConfig kTile, typename In>
using GatedEngine =
    std::conditional_t<kTile.gated == Gated::kColumns, Engine<kTile, Major::kK, Major::kMN, In>,
                       Engine<kTile, Major::kMN, Major::kK, In>>;

// Which majors a tile of grouped products is compiled for follows from that of the weights. Sums have tokens
// along k in both operands, which are MN-major then, and gated weights are k x n.
template <TileConfig kTile, Major kWeights>
constexpr bool has_weights(bool sums_or_gated = kTile.grouped == Grouped::kSums ||
                                                kTile.gated != Gated::kNo) {
  return !sums_or_gated || kWeights == Major::kMN;
}
template <TileConfig kTile, Major kWeights, typename In>
using GroupedEngine = std::conditional_t<
    kTile.grouped == Grouped::kSums, Engine<kTile, Major::kMN, Major::kMN, In>,
    std::conditional_t<kTile.grouped == Grouped::kRows, Engine<kTile, Major::kK, kWeights, In>,
                       Engine<kTile, kWeights, Major::kK, In>>>;

template <typename In, Major kWeights>
Status launch_grouped_tiles(const GroupedParams& params, const Launch& launch) {
  Status status{"internal error: no such grouped tile in kernel 'sm90'"};
  const auto launch_tile = [&]<int kTile>() {
    if constexpr (has_weights<kTiles[kTile], kWeights>()) {
      if (kTile == launch.tile)
        status = launch_engine<GroupedEngine<kTiles[kTile], kWeights, In>>(params, launch);
    }
  };
  [&]<int... kTile>(std::integer_sequence<int, kTile...>) {
    (launch_tile.template operator()<kUngroupedTileCount + kTile>(), ...);
  }(std::make_integer_sequence<int, kGroupedTileCount>{});
  return status;
}

template <typename In, Major kX, Major kY>
Status launch_many_tiles(const ManyParams& params, const Launch& launch) {
  Status status{"internal error: no such tile of many products in kernel 'sm90'"};
  const auto launch_tile = [&]<int kTile>() {
    if (kTile == launch.tile) status = launch_engine<Engine<kTiles[kTile], kX, kY, In>>(params, launch);
  };
  [&]<int... kTile>(std::integer_sequence<int, kTile...>) {
    (launch_tile.template operator()<kSingleTileCount + kTile>(), ...);
  }(std::make_integer_sequence<int, kManyTileCount>{});
  return status;
}

template <typename In>
Status launch_gated_tiles(const GatedParams& params, const Launch& launch) {
  Status status{"internal error: no such gated tile in kernel 'sm90'"};
  [&]<int... kTile>(std::integer_sequence<int, kTile...>) {
    ((kPlainTileCount + kTile == launch.tile
          ? (status = launch_engine<GatedEngine<kTiles[kPlainTileCount + kTile], In>>(params, launch), true)
          : false) ||
     ...);
  }(std::make_integer_sequence<int, kGatedTileCount>{});
  return status;
}

}  // namespace jaxgemm::cuda::sm90
