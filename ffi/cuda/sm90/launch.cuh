// From a configuration chosen at run time to an instantiation of the engine. Each file that includes this
// instantiates one operand type and one pair of majors, so that they compile side by side.
#pragma once

#include <type_traits>
#include <utility>

#include "kernel.cuh"
#include "launch.h"

namespace jaxgemm::cuda::sm90 {

template <typename E>
Status launch_engine(const typename E::Parameters& params, const Launch& launch) {
  constexpr auto kernel = &gemm_sm90<E>;
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
  if (launch.overlaps) {
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

template <typename Product, Major kX, Major kY, typename From>
Status launch_tiles(const From& from, const Launch& launch) {
  Status status{"internal error: no such tile in kernel 'sm90'"};
  const auto launch_tile = [&]<int kTile>() {
    constexpr const TileConfig& tile = kTiles[kTile];
    if constexpr (tile.many == std::is_same_v<From, ManyParameters> && has_product<Product>(tile, kX) &&
                  has_majors(tile, kX, kY)) {
      if (kTile == launch.tile) status = launch_engine<Engine<tile, kX, kY, Product>>(from, launch);
    }
  };
  [&]<int... kTile>(std::integer_sequence<int, kTile...>) {
    (launch_tile.template operator()<kTile>(), ...);
  }(std::make_integer_sequence<int, kTileCount>{});
  return status;
}

}  // namespace jaxgemm::cuda::sm90
