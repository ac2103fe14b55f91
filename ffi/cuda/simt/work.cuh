// How the work is divided among blocks.
//
// The output tiles of all products lie in a row, each with its stages of K. The first `whole` tiles go to a
// block each. The rest is cut into equal ranges of stages, one a block, wherever the cuts fall, so that no
// multiprocessor idles while others finish a last round of tiles. The parts of a tile that a cut goes through
// leave their sums in `partial`, and simt_reduce finishes the tile. The cuts follow from the problem and the
// chip.
#pragma once

#include "../device/operands.cuh"
#include "results.cuh"

namespace jaxgemm::cuda::simt {

// The types of a kernel's operands and of its sums. Operands of 16 bits are copied as they are, and which of
// f16 and bf16 they hold is known at run time: kF16 stands for both.
template <DType Operands>
struct KindOf {
  using Element = std::conditional_t<Operands == DType::kF16, uint16_t, typename TypeOf<Operands>::type>;
  using Acc = std::conditional_t<Operands == DType::kF64, double, float>;
  // The results of 16-bit operands have 16 bits, or are f32.
  static constexpr Widths kWidths = Operands == DType::kF16 ? Widths::kAny : Widths::kAcc;
};
using F32Kind = KindOf<DType::kF32>;
using F64Kind = KindOf<DType::kF64>;
using HalfKind = KindOf<DType::kF16>;

// What simt_gemm and simt_reduce both need: the output tiles, how they are cut, and where their sums go.
template <typename Acc>
struct Outputs {
  int64_t m, n;
  int64_t tiles, whole;  // in all products; a product has tiles_m * tiles_n
  unsigned tiles_m, tiles_n;
  int64_t tile_stages;  // stages of a tile, of BK values of K each; a ragged rest makes one of its own
  int64_t ranges;       // of the tiles that are not whole
  Results<Acc> results;
  Acc* partial;  // [slot][BM][BN], see Cuts::slot
  bool wide;     // rows of D, C and bias allow vector accesses
};

template <typename Kind>
struct Params : Outputs<typename Kind::Acc> {
  int64_t k;
  int64_t batch, inner;  // products: batch = outer * inner
  unsigned chunk;        // stages that are summed up in registers before they join the sum so far
  Operand<typename Kind::Element> a, b;
  bool bf16;   // 16-bit operands are bf16 rather than f16
  bool plain;  // wide, and neither C nor bias
};

// The ranges of the tiles that are not whole. Tiles and stages are counted from the first of these.
struct Cuts {
  int64_t tiles, tile_stages, ranges;
  template <typename Acc>
  __host__ __device__ __forceinline__ explicit Cuts(const Outputs<Acc>& p)
      : tiles(p.tiles - p.whole), tile_stages(p.tile_stages), ranges(p.ranges) {}

  // The first stage of a range. Where the number of tiles divides that of the ranges, this is a multiple of a
  // tile's stages: plain split-K.
  __host__ __device__ __forceinline__ int64_t begin(int64_t range) const {
    return range * (tiles * tile_stages) / ranges;
  }
  __host__ __device__ __forceinline__ int64_t range_of(int64_t stage) const {
    return ((stage + 1) * ranges - 1) / (tiles * tile_stages);
  }
  // The place of a part in `partial`. From one part to the next the range or the tile goes up by one, or
  // both, so no two parts share a slot, and a tile's parts lie side by side.
  static __host__ __device__ __forceinline__ int64_t slot(int64_t range, int64_t tile) {
    return range + tile;
  }
};

// Which product and which tile of it. Blocks that run together should share operands in the L2: tiles go down
// swaths of 8 rows, column by column. The caller sees to it that a product's tiles fit in 32 bits.
struct TileIndex {
  int64_t batch = 0;
  unsigned m = 0, n = 0;
  __device__ __forceinline__ TileIndex(int64_t index, unsigned rows, unsigned cols) {
    const unsigned product = rows * cols;
    if (product == 1) {
      batch = index;
      return;
    }
    if (index >= product) batch = index / product;
    const unsigned tile = static_cast<unsigned>(index - batch * product);
    constexpr unsigned kWalkHeight = 8;
    const unsigned first = tile / (kWalkHeight * cols) * kWalkHeight;
    const unsigned height = rows - first < kWalkHeight ? rows - first : kWalkHeight;
    const unsigned in_swath = tile - first * cols;
    m = first + in_swath % height;
    n = in_swath / height;
  }
};

// The output tile that a block computes, kept in shared memory because the main loop has no register to
// spare.
template <typename Acc>
struct OutputTile {
  int64_t batch, row0, col0;
  Acc* partial;  // where its part's sums go; null: the tile is finished, to D
};

}  // namespace jaxgemm::cuda::simt
