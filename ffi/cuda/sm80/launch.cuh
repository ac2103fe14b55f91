// The definition behind launch.h, for the files that instantiate it.
#pragma once

#include <utility>

#include "kernel.cuh"
#include "launch.h"

namespace jaxgemm::cuda::sm80 {

template <typename E>
Status launch_engine(const Params& params, const Launch& launch) {
  if (launch.prepare) {
    const cudaError_t error = cudaFuncSetAttribute(product<E>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                   E::kTile.shared_bytes());
    if (error == cudaSuccess) return {};
    return {std::string("preparing kernel 'sm80': ") + cudaGetErrorString(error)};
  }
  product<E><<<launch.blocks, E::kThreads, E::kTile.shared_bytes(), launch.stream>>>(params);
  return launch_status("sm80");
}

template <typename In, Major kMajorA, Major kMajorB, int... kTile>
Status launch_wide(const Params& params, const Launch& launch, std::integer_sequence<int, kTile...>) {
  Status status;
  const auto run = [&](auto tile) {
    if (!status.ok() || (!launch.prepare && tile != launch.tile)) return;
    status = launch_engine<Engine<In, kMajorA, kMajorB, true, decltype(tile)::value>>(params, launch);
  };
  (run(std::integral_constant<int, kTile>{}), ...);
  return status;
}

template <typename In, Major kMajorA, Major kMajorB>
Status launch_tiles(const Params& params, const Launch& launch) {
  Status status;
  // The operands' addresses decide between wide and narrow copies; they are not known when preparing.
  if (launch.prepare || launch.wide) {
    status = launch_wide<In, kMajorA, kMajorB>(params, launch, std::make_integer_sequence<int, kTileCount>{});
  }
  if (status.ok() && (launch.prepare || !launch.wide)) {
    status = launch_engine<Engine<In, kMajorA, kMajorB, false, 0>>(params, launch);
  }
  return status;
}

}  // namespace jaxgemm::cuda::sm80
