// The compiled tile shapes of the sm80 kernel. Host and device.
//
// Warp tiles of 64 x 64 load the fewest fragment bytes for each product that the register file allows (128
// accumulators a thread), which leaves bandwidth of shared memory to the copies. Every shape's stages fit
// into the 99 KB that the smallest chips of the family (8.6, 8.9, 12.x) give a block, so that one choice of
// shape holds on all of them and results do not depend on the chip.
#pragma once

namespace jaxgemm::cuda::sm80 {

struct TileConfig {
  int m, n, k;         // block tile
  int warp_m, warp_n;  // warp tile
  int stages;
  int blocks_per_sm;  // resident blocks that the register budget allows

  constexpr int warps() const { return m / warp_m * (n / warp_n); }
  constexpr int threads() const { return warps() * 32; }
  constexpr int stage_bytes() const { return (m + n) * k * 2; }
  constexpr int shared_bytes() const { return stages * stage_bytes(); }
  // A warp's buffer in the epilogue: 8 rows of fp32 results or 16 of 16-bit ones, padded against bank
  // conflicts. The buffers lie in the last stage, which the next unit's first copies do not write.
  constexpr int buffer_bytes() const { return 8 * (warp_n + 8) * 4; }
};

// Indexed by the option `tile`, less one. Two large shapes for large products; 64 x 128 keeps the 64 x 64
// warp tile with two warps a block, so that products with fewer outputs fill the chip evenly; 64 x 64 has
// four times as many warps for the same outputs, for products that wait for memory; 16 x 128 reads a wide B
// for a few rows.
constexpr TileConfig kTiles[] = {
    {128, 256, 32, 64, 64, 4, 1},  //
    {128, 128, 32, 64, 64, 4, 2},  //
    {64, 128, 32, 64, 64, 4, 4},   //
    {64, 64, 64, 32, 32, 3, 4},    //
    {16, 128, 64, 16, 32, 3, 4},
};
constexpr int kTileCount = sizeof(kTiles) / sizeof(kTiles[0]);

// For operands that 16-byte copies cannot address, whatever the option `tile` says. Their copies are bound by
// the number of instructions, which no tile shape changes.
constexpr TileConfig kNarrowTile = {64, 64, 32, 32, 32, 4, 2};

// Positions in GemmProblem::config. 0 leaves the choice to the model.
enum Option { kTile, kSplitK };

}  // namespace jaxgemm::cuda::sm80
