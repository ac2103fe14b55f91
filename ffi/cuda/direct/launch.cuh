// The definition behind launch.h, for the files that instantiate it.
#pragma once

#include <utility>

#include "launch.h"

namespace jaxgemm::cuda::direct {

template <typename E>
Status launch_engine(const Params<typename E::In>& params, const Launch& launch) {
  constexpr int kWarpBytes = E::kM * E::kPitch * static_cast<int>(sizeof(float));
  if (launch.prepare) {
    const cudaError_t error =
        cudaFuncSetAttribute(direct<E>, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxWarps * kWarpBytes);
    if (error == cudaSuccess) return {};
    return {std::string("preparing kernel 'direct': ") + cudaGetErrorString(error)};
  }
  const int warps = launch.config.warps;
  direct<E><<<launch.blocks, 32 * warps, warps * kWarpBytes, launch.stream>>>(params);
  return launch_status("direct");
}

template <typename In, Major kA, Major kB>
Status launch_tiles(const Params<In>& params, const Launch& launch) {
  Status status{"internal error: no such tile and flow in kernel 'direct'"};
  const auto run = [&]<int kTile, bool kAligned, Flow kFlow>() {
    if constexpr (kTiles[kTile].fits(kA) && compiled(kTiles[kTile], kAligned, kFlow)) {
      if (kTile == launch.config.tile && kAligned == launch.aligned && kFlow == launch.flow)
        status = launch_engine<Engine<In, kA, kB, kTile, kAligned, kFlow>>(params, launch);
    }
  };
  const auto flows = [&]<int kTile, bool kAligned>() {
    [&]<int... kDepth>(std::integer_sequence<int, kDepth...>) {
      (run.template operator()<kTile, kAligned, Flow{kDepth + 1, false}>(), ...);
      (run.template operator()<kTile, kAligned, Flow{kDepth + 1, true}>(), ...);
    }(std::make_integer_sequence<int, kMaxDepth>{});
  };
  [&]<int... kTile>(std::integer_sequence<int, kTile...>) {
    (flows.template operator()<kTile, true>(), ...);
    (flows.template operator()<kTile, false>(), ...);
  }(std::make_integer_sequence<int, kTileCount>{});
  return status;
}

}  // namespace jaxgemm::cuda::direct
