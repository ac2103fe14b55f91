// mma_sync: what WMMA hides, by hand. Tiles 128 x 128 x 32, 4 warps, each 64 x 64 in 4 x 8 products of
// 16 x 8 x 16.
//
// Four things change from `wmma_f16`. Copies by cp.async pass no registers, so they can run ahead: one stage
// of three is multiplied, two are on their way. Lines are not padded but swizzled: their chunks of 16 bytes
// are permuted by an XOR with the line's number, which spreads a column of chunks over all banks. ldmatrix
// reads four 8 x 8 matrices at a time, transposed where the operand lies across k. And which lane holds which
// element for mma.sync is specified: results need no way through shared memory, and a warp's tile is large
// enough to use a fragment of A eight times and one of B four times.
//
//   tile       128 x 128 x 32
//   threads    128
//   registers  256: 128 sums, 64 operands
//   stages     3
//   shared     128 x 32 x 2, 128 x 32 x 2
//   shows      float16 HMMA LDSM LDGSTS; bfloat16 HMMA LDSM LDGSTS
#include "../device/cp_async.cuh"
#include "../device/mma.cuh"
#include "../device/ptx.cuh"
#include "../device/tile.cuh"
#include "ladder.h"

namespace jaxgemm::cuda {
namespace {

constexpr int kBlock = 128, kBlockK = 32;  // the block tile's extents: along m and n, and along k
constexpr int kWarp = 64;                  // the warp tile's extent along m and n
constexpr int kTileBytes = kBlock * kBlockK * 2, kStageBytes = 2 * kTileBytes, kThreads = 128;

// One operand's tile in shared memory: lines along k or across it, as they lie in global memory, cut into
// chunks of 8 elements.
template <bool kAlongK>
struct SharedTile {
  static constexpr int kChunks = (kAlongK ? kBlockK : kBlock) / 8;  // of a line

  // Byte offset of a chunk. ldmatrix reads 8 successive lines at one chunk, which must lie in 8 different
  // sixteenths of 128 bytes. Two lines along k share 128 bytes, so there the XOR counts pairs of lines.
  static __device__ __forceinline__ uint32_t offset(int line, int chunk) {
    return (line * kChunks + (chunk ^ (kAlongK ? line / 2 % 4 : line % 8))) * 16;
  }
};

// The way of one operand's tiles from global to shared memory, one after another along k.
template <typename In, bool kAlongK>
struct Copy {
  using Tile = SharedTile<kAlongK>;
  static constexpr int kLines = kThreads / Tile::kChunks;  // that the block copies at a time
  static constexpr int kRounds = kBlock * kBlockK / 8 / kThreads;

  __device__ __forceinline__ Copy(const TileOperand<In>& x, int64_t batch, int64_t first, int64_t extent)
      : ld_(x.ld), line_(threadIdx.x / Tile::kChunks), element_(threadIdx.x % Tile::kChunks * 8) {
    next_ = x.at_batch(batch) + (kAlongK ? first * ld_ : first) + line_ * ld_ + element_;
    extent_ = extent - first < kBlock ? static_cast<int>(extent - first) : kBlock;
    const int64_t strides = x.ld | x.batch_stride[0] | x.batch_stride[1];
    aligned_ = (reinterpret_cast<uintptr_t>(x.data) | static_cast<uintptr_t>(strides) * 2) % 16 == 0;
  }

  // Begins to copy the next tile; `k_left` elements of k are still to come. Elements outside of the operand
  // become zero.
  __device__ __forceinline__ void start(uint32_t tile, int64_t k_left) {
    const int depth = k_left < kBlockK ? static_cast<int>(k_left) : kBlockK;
    const int lines = kAlongK ? extent_ : depth, length = kAlongK ? depth : extent_;
    const In* from = next_;
#pragma unroll
    for (int r = 0; r < kRounds; ++r, from += kLines * ld_) {
      const int line = line_ + r * kLines;
      const int count = line < lines ? min(max(length - element_, 0), 8) : 0;
      const uint32_t to = tile + Tile::offset(line, element_ / 8);
      if (aligned_) {
        cp_async_part(to, from, 2 * count);
      } else {  // no asynchronous copy moves 2 bytes, so a chunk that may begin anywhere passes the registers
        alignas(16) In element[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) element[i] = i < count ? from[i] : In{};
        store_shared(to, *reinterpret_cast<const uint4*>(element));
      }
    }
    next_ += kAlongK ? kBlockK : kBlockK * ld_;
  }

  const In* next_;
  int64_t ld_;
  int line_, element_;  // of this thread's first chunk
  int extent_;          // how much of m or n exists
  bool aligned_;        // every chunk begins at a multiple of 16 bytes
};

// A warp's 64 rows of A or columns of B, 16 of k at a time. Each ldmatrix brings 16 x 16 elements: matrices 0
// to 3 are the registers that mma.sync wants, for A x 0-7 and x 8-15 at k 0-7, then both at k 8-15; for B x
// 0-7 at k 0-7 and k 8-15, one product's operand, then x 8-15.
template <bool kOfA, bool kAlongK>
struct Fragments {
  using Tile = SharedTile<kAlongK>;

  __device__ __forceinline__ explicit Fragments(int x) {
    const int lane = threadIdx.x % 32, odd = lane / 8 % 2, upper = lane / 16;  // of this lane's matrix
    const int x_half = (kOfA ? odd : upper) * 8, k_half = (kOfA ? upper : odd) * 8;
    first_ = kAlongK ? Tile::offset(x + x_half + lane % 8, k_half / 8)
                     : Tile::offset(k_half + lane % 8, (x + x_half) / 8);
  }

  // 16 lines further on the XOR is the same. Two chunks further on, a bit changes that is 0 in the offset
  // without the XOR, so it can be flipped after the XOR.
  __device__ __forceinline__ void read(uint32_t (&to)[kWarp / 16][4], uint32_t tile, int step) const {
#pragma unroll
    for (int i = 0; i < kWarp / 16; ++i) {
      const int chunks = kAlongK ? 2 * step : 2 * i, lines = kAlongK ? 16 * i : 16 * step;
      load_matrix_x4<!kAlongK>(to[i], tile + (first_ ^ chunks * 16) + lines * Tile::kChunks * 16);
    }
  }

  uint32_t first_;
};

using Accumulators = float[kWarp / 16][kWarp / 8][4];

// Adds the product of the block's rows and columns to `acc`. Copies run two tiles ahead, and fragments one
// step, as in `shared_pipeline`: a tile's last step covers the next tile's first read.
template <typename T, bool kTransposeA, bool kTransposeB>
__device__ __forceinline__ void sum_over_k(const TiledProduct<T>& p, int64_t batch, int64_t block_row,
                                           int64_t block_col, uint32_t stages, Accumulators& acc) {
  using In = typename T::A;
  const int warp = threadIdx.x / 32;
  const Fragments<true, !kTransposeA> a_fragments(warp / 2 * kWarp);
  const Fragments<false, kTransposeB> b_fragments(warp % 2 * kWarp);
  Copy<In, !kTransposeA> a(p.a, batch, block_row, p.m);
  Copy<In, kTransposeB> b(p.b, batch, block_col, p.n);
  int64_t to_copy = p.k;
  const auto copy = [&](uint32_t stage) {
    if (to_copy > 0) {
      a.start(stage, to_copy);
      b.start(stage + kTileBytes, to_copy);
    }
    cp_async_commit();  // an empty group at the end, so that the same number is always under way
    to_copy -= kBlockK;
  };
  uint32_t a_held[2][kWarp / 16][4], b_held[2][kWarp / 16][4];
  const auto read = [&](uint32_t stage, int step) {
    a_fragments.read(a_held[step], stage, step);
    b_fragments.read(b_held[step], stage + kTileBytes, step);
  };
  const auto multiply = [&](int step) {
#pragma unroll
    for (int i = 0; i < kWarp / 16; ++i) {
#pragma unroll
      for (int j = 0; j < kWarp / 8; ++j) {
        const uint32_t* const b = &b_held[step][j / 2][j % 2 * 2];
        mma_16x8x16<In>(acc[i][j], a_held[step][i], b[0], b[1]);
      }
    }
  };
  copy(stages);
  copy(stages + kStageBytes);
  cp_async_wait<1>();  // a later copy may be under way
  __syncthreads();
  read(stages, 0);
  uint32_t stage = stages, free = stages + 2 * kStageBytes;
#pragma unroll 1
  for (int64_t k_left = p.k; k_left > 0; k_left -= kBlockK) {
    read(stage, 1);
    copy(free);
    multiply(0);
    cp_async_wait<1>();
    __syncthreads();  // the next tile is there, and all threads have read this one
    free = stage;
    stage = stage == stages + 2 * kStageBytes ? stages : stage + kStageBytes;
    read(stage, 0);  // after the last tile these fragments are not multiplied
    multiply(1);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 2) mma_sync(const __grid_constant__ TiledProduct<T> p) {
  __shared__ alignas(128) char stages[3 * kStageBytes];
  const int64_t block_row = int64_t{p.tile_row()} * kBlock, block_col = int64_t{p.tile_col()} * kBlock;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  for (int64_t batch = blockIdx.y; batch < p.grid.batch; batch += gridDim.y) {
    Accumulators acc = {};
    with_layouts(p, [&]<bool kTransposeA, bool kTransposeB>() {
      sum_over_k<T, kTransposeA, kTransposeB>(p, batch, block_row, block_col, shared_address(stages), acc);
    });
    __syncthreads();  // the stages are free for the next product
    // A lane has two neighbours in each of two rows of each 16 x 8 product.
    float results[kWarp / 8][kWarp / 4];
#pragma unroll
    for (int i = 0; i < kWarp / 8; ++i) {
#pragma unroll
      for (int j = 0; j < kWarp / 4; ++j) results[i][j] = acc[i / 2][j / 2][i % 2 * 2 + j % 2];
    }
    const int64_t row = block_row + warp / 2 * kWarp + lane / 4, col = block_col + warp % 2 * kWarp;
    store_results<2>(
        p, batch, results, [&](int i) { return row + i * 8; },
        [&](int j) { return col + j / 2 * 8 + lane % 4 * 2; });
  }
}

}  // namespace

Status launch_mma_sync(const GemmProblem& p, const GemmBuffers& buffers, const Executor& executor) {
  return dispatch_types(TensorTypes{}, p, [&](auto types) {
    return launch_tiles("mma_sync", mma_sync<decltype(types)>, p, buffers, executor, kBlock, kBlock,
                        kThreads);
  });
}

}  // namespace jaxgemm::cuda
