// The sm80 kernel: block tiles of D on mma.sync, through a pipeline of cp.async stages.
//
//   global --cp.async--> shared (swizzled) --ldmatrix--> fragments --mma.sync--> accumulators --shared--> D
//
// The kernel uses nothing that Ampere lacks, so its PTX serves every later chip that has no engine of its
// own. It is persistent: a block takes one unit of work after another, and the next unit's first copies are
// in flight while the results of the one before are stored.
#pragma once

#include "epilogue.cuh"
#include "mainloop.cuh"

namespace jaxgemm::cuda::sm80 {

// A unit of work: a tile of D, over all of K or one split of it.
struct Unit {
  TileIndex tile{};
  int64_t slab = -1;  // index of its partial result; -1 for a whole tile
  int64_t k_begin = 0, k_end = 0;

  Unit() = default;
  __device__ __forceinline__ Unit(const Params& p, int64_t i) : k_end(p.k_tiles) {
    if (i >= p.whole) {
      slab = i - p.whole;
      const int64_t split = slab / p.split_tiles;
      i -= split * p.split_tiles;
      k_begin = split * p.k_tiles / p.splits;
      k_end = (split + 1) * p.k_tiles / p.splits;
    }
    tile = p.order(i);
  }
};

template <typename E>
__device__ __forceinline__ Loop<E> start(const Params& p, const Unit& unit, uint32_t shared) {
  int64_t outer = 0, inner = 0;
  if (unit.tile.batch > 0) {
    outer = unit.tile.batch / p.batch_inner;
    inner = unit.tile.batch - outer * p.batch_inner;
  }
  const auto data = [&](const Side& side) {
    return side.data + outer * side.batch_stride[0] + inner * side.batch_stride[1];
  };
  Loop<E> loop(typename E::CopyA(p.a, data(p.a), unit.tile.m * E::kM, unit.k_begin * E::kK),
               typename E::CopyB(p.b, data(p.b), unit.tile.n * E::kN, unit.k_begin * E::kK),
               static_cast<int>(unit.k_end - unit.k_begin), unit.k_end == p.k_tiles ? p.tail : E::kK);
  loop.fill(shared);
  return loop;
}

template <typename E>
__global__ void __launch_bounds__(E::kThreads, E::kTile.blocks_per_sm)
    product(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) uint8_t shared[];
  const uint32_t stages = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int warp = static_cast<int>(threadIdx.x) / 32;
  float* const buffer =
      reinterpret_cast<float*>(shared + (E::kStages - 1) * E::kStageBytes + warp * E::kBufferBytes);

  Unit unit, done;
  Loop<E> loop;
  typename E::Accumulators acc;
#pragma unroll 1
  for (int64_t i = blockIdx.x;; i += gridDim.x) {
    if (i < p.units) {
      unit = Unit(p, i);
      loop = start<E>(p, unit, stages);
    }
    if (i != blockIdx.x) {
      const int64_t row = done.tile.m * E::kM, col = done.tile.n * E::kN;
      Output out = p.out;
      int64_t base = done.tile.batch * out.rows * out.pitch;
      if (done.slab >= 0) {
        out.d = p.partial;
        out.pitch = E::kN;
        out.alpha = 1.f;
        out.store = Store::kDirect;
        base = done.slab * (E::kM * E::kN) - row * E::kN - col;
      }
      EpilogueWarp<E>(out, buffer, base, row + warp / E::kWarpsN * E::kWarpM,
                      col + warp % E::kWarpsN * E::kWarpN)
          .store(acc);
    }
    if (i >= p.units) break;
    clear<E>(acc);
    loop.run(acc, stages);
    done = unit;
  }
}

}  // namespace jaxgemm::cuda::sm80
