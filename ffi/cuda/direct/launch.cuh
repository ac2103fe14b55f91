// The definition behind launch.h, for the files that instantiate it.
#pragma once

#include <utility>

#include "launch.h"

namespace jaxgemm::cuda::direct {

template <typename E>
Status launch_engine(const Params<typename E::In>& params, const Launch& launch) {
  constexpr int kWarpBytes = E::kM * kPitch * static_cast<int>(sizeof(float));
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
  Status status;
  const auto run = [&]<int kTile, bool kAligned, Finish kFinish>() {
    if constexpr (kTiles[kTile].fits(kA)) {
      // Alignment depends on the operands' addresses, which are not known when preparing.
      const bool asked =
          kTile == launch.config.tile && kAligned == launch.aligned && kFinish == launch.finish;
      if (status.ok() && (asked || launch.prepare))
        status = launch_engine<Engine<In, kA, kB, kTile, kAligned, kFinish>>(params, launch);
    }
  };
  const auto tiles = [&]<bool kAligned, Finish kFinish>() {
    [&]<int... kTile>(std::integer_sequence<int, kTile...>) {
      (run.template operator()<kTile, kAligned, kFinish>(), ...);
    }(std::make_integer_sequence<int, kTileCount>{});
  };
  tiles.template operator()<true, Finish::kPacked>();
  tiles.template operator()<true, Finish::kPlain>();
  tiles.template operator()<true, Finish::kFull>();
  tiles.template operator()<false, Finish::kPacked>();
  tiles.template operator()<false, Finish::kPlain>();
  tiles.template operator()<false, Finish::kFull>();
  return status;
}

}  // namespace jaxgemm::cuda::direct
