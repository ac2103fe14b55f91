// wgmma_tma: Hopper's way. Tiles 128 x 256 x 64, a ring of 4 stages, one warp that loads and two warpgroups
// of 4 warps that multiply, 64 rows each.
//
// Three things change from `mma_sync`. TMA: one thread asks the copy engine for boxes of 64 x 64 elements by
// their place in a tensor; the engine computes addresses, swizzles, and fills with zeros what lies outside.
// Barriers in shared memory: a stage is `full` when all of its bytes have arrived and `empty` when both
// warpgroups have read it, so that the loading warp runs up to four stages ahead of the warpgroups. And wgmma
// reads both operands from shared memory by itself: registers hold sums alone, 64 x 256 a warpgroup, and a
// stage's products are issued while those of the one before are under way.
//
//   tile       128 x 256 x 64
//   threads    288
//   registers  160: 128 sums, 0 operands
//   stages     4
//   shared     128 x 64 x 2, 256 x 64 x 2, 2 x 1 x 8
//   launched   1024
//   shows      float16 HGMMA UTMALDG SYNCS; bfloat16 HGMMA UTMALDG SYNCS
#include <string>

#include "../../arithmetic.h"
#include "../device/mbarrier.cuh"
#include "../device/tile.cuh"
#include "../device/tma.cuh"
#include "../device/wgmma.cuh"
#include "../planning.h"
#include "../sm90/tensor_map.h"
#include "ladder.h"

namespace jaxgemm::cuda {
namespace {

constexpr int kBlockM = 128, kBlockN = 256, kBox = 64;  // a box is as deep along k as a stage
constexpr int kStages = 4, kConsumers = 2, kThreads = 128 * kConsumers + 32;
constexpr int kBoxBytes = kBox * kBox * 2;
constexpr int kBytesA = kBlockM / kBox * kBoxBytes, kStageBytes = kBytesA + kBlockN / kBox * kBoxBytes;
constexpr int kSwizzlePeriod = 1024;  // bytes, at multiples of which boxes must begin
// Behind the stages lie their barriers, of 8 bytes each.
constexpr int kFull = kStages * kStageBytes, kEmpty = kFull + kStages * 8;
constexpr int kSharedBytes = kSwizzlePeriod + kEmpty + kStages * 8;
constexpr int kPitch = kBlockN + 8;  // of a warp's results in shared memory: rows begin in different banks
static_assert(4 * kConsumers * 16 * kPitch * sizeof(float) <= kStages * kStageBytes);

template <typename T>
struct Parameters : TiledProduct<T> {
  CUtensorMap a_map, b_map;
};

// The loading thread's work: it fills every stage in turn, once the stage is empty. Boxes lie one after
// another, each of 64 lines of 128 bytes: rows of A or columns of B if the operand is contiguous along k,
// else one line for each k.
template <typename T>
__device__ __forceinline__ void load(const Parameters<T>& p, uint32_t ring, int64_t batch, int64_t row,
                                     int64_t col) {
  const int outer = static_cast<int>(batch / p.a.inner), inner = static_cast<int>(batch % p.a.inner);
  RingPosition<kStages> at;
  for (int k = 0; k < p.k; k += kBox, at.next()) {
    const uint32_t stage = ring + at.stage * kStageBytes, full = ring + kFull + at.stage * 8;
    // The tensor of an operand that the batch shares has one product.
    const auto copy = [&](const auto& x, const CUtensorMap& map, uint32_t to, int64_t from) {
      const int first = static_cast<int>(from);
      tma_load(to, &map, full, x.along_k ? k : first, x.along_k ? first : k, x.batch_stride[1] ? inner : 0,
               x.batch_stride[0] ? outer : 0);
    };
    mbarrier_wait(ring + kEmpty + at.stage * 8, at.parity ^ 1);
    mbarrier_arrive_expect(full, kStageBytes);
#pragma unroll
    for (int i = 0; i < kBlockM / kBox; ++i) copy(p.a, p.a_map, stage + i * kBoxBytes, row + i * kBox);
#pragma unroll
    for (int i = 0; i < kBlockN / kBox; ++i)
      copy(p.b, p.b_map, stage + kBytesA + i * kBoxBytes, col + i * kBox);
  }
}

// Adds the product of a warpgroup's 64 rows and all columns to `acc`. A stage is released when the products
// of the next one have been issued and its own are done.
template <typename In, Major kMajorA, Major kMajorB>
__device__ __forceinline__ void multiply(float (&acc)[kBlockN / 2], uint32_t ring, int64_t k, int warpgroup) {
  using A = OperandTile<kMajorA>;
  using B = OperandTile<kMajorB>;
  const uint64_t a_ring = A::descriptor(ring + warpgroup * kBoxBytes);
  const uint64_t b_ring = B::descriptor(ring + kBytesA);
  RingPosition<kStages> at;
  for (int64_t k_left = k; k_left > 0; k_left -= kBox) {
    mbarrier_wait(ring + kFull + at.stage * 8, at.parity);
    const uint64_t a = advance(a_ring, at.stage * (kStageBytes / 16));
    const uint64_t b = advance(b_ring, at.stage * (kStageBytes / 16));
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < kBox / 16; ++step) {
      Wgmma<Product<In>, kBlockN, kMajorA, kMajorB>::mma(acc, advance(a, step * A::kStep),
                                                         advance(b, step * B::kStep), 1);
    }
    wgmma_commit();
    wgmma_wait<1>();
    const int before = (at.stage + kStages - 1) % kStages;
    if (k_left < k && threadIdx.x % 128 == 0) mbarrier_arrive(ring + kEmpty + before * 8);
    at.next();
  }
  wgmma_wait<0>();
  wgmma_pin(acc);
}

// Stores a warp's results by way of shared memory, so that they leave in whole rows.
template <typename T>
__device__ __forceinline__ void store(const TiledProduct<T>& p, int64_t batch, int64_t first_row,
                                      int64_t first_col, float (&own)[16][kPitch],
                                      const float (&acc)[kBlockN / 2]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kBlockN / 2; i += 2) {  // registers 4j, 4j + 1: row lane / 4; then the row 8 below
    auto* const to = &own[lane / 4 + i / 2 % 2 * 8][i / 4 * 8 + lane % 4 * 2];
    *reinterpret_cast<float2*>(to) = {acc[i], acc[i + 1]};
  }
  __syncwarp();
#pragma unroll 1
  for (int i = 0; i < 16 * kBlockN; i += 32 * 4) {
    const int row = i / kBlockN, col = i % kBlockN + lane * 4;
    float run[1][4];
    read4(run[0], &own[row][col]);
    store_results<4>(
        p, batch, run, [&](int) { return first_row + row; }, [&](int) { return first_col + col; });
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 1) wgmma_tma(const __grid_constant__ Parameters<T> p) {
  extern __shared__ char shared[];
  const uint32_t padding = -shared_address(shared) % kSwizzlePeriod;
  const uint32_t ring = shared_address(shared) + padding;
  const int64_t batch = int64_t{blockIdx.z} * gridDim.y + blockIdx.y;
  const int64_t row = int64_t{p.tile_row()} * kBlockM, col = int64_t{p.tile_col()} * kBlockN;
  if (batch >= p.grid.batch) return;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(ring + kFull + i * 8, 1);
      mbarrier_init(ring + kEmpty + i * 8, kConsumers);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  const int warp = uniform_warp(), warpgroup = warp / 4;
  if (warpgroup == kConsumers) {
    if (elect_one()) load(p, ring, batch, row, col);
    return;
  }
  float acc[kBlockN / 2] = {};
  with_layouts(p, [&]<bool kTransposeA, bool kTransposeB>() {
    multiply<typename T::A, kTransposeA ? Major::kMN : Major::kK, kTransposeB ? Major::kK : Major::kMN>(
        acc, ring, p.k, warpgroup);
  });
  named_barrier_sync(1, 128 * kConsumers);  // all warps have read the stages, where results go next
  store(p, batch, row + warp * 16, col, reinterpret_cast<float (*)[16][kPitch]>(shared + padding)[warp], acc);
}

// The tensor of an operand: {contiguous, lines, inner batch, outer batch}.
Status encode(const GemmProblem& p, const Matrix& x, const void* base, bool along_k, int64_t extent,
              CUtensorMap* map) {
  const int64_t inner = x.batch_stride[1] ? p.batch[1] : 1, outer = x.batch_stride[0] ? p.batch[0] : 1;
  return sm90::encode_tensor_map({.base = base,
                                  .rank = 4,
                                  .extent = {along_k ? p.k : extent, along_k ? extent : p.k, inner, outer},
                                  .stride = {1, x.ld, x.batch_stride[1], x.batch_stride[0]},
                                  .box = {kBox, kBox, 1, 1},
                                  .type = x.dtype},
                                 map);
}

}  // namespace

std::string unsupported_wgmma_tma(const GemmProblem& p) {
  for (const int64_t extent : {p.m, p.n, p.k, p.batch_count()}) {
    if (extent > INT32_MAX - kBlockN) return "kernel 'wgmma_tma' takes extents below 2^31 - 256";
  }
  if (p.output_empty() || p.k == 0) return {};  // nothing is copied
  const bool a = lines_aligned(p.a, p.a.transposed ? p.k : p.m);
  if (a && lines_aligned(p.b, p.b.transposed ? p.n : p.k)) return {};
  return std::string("kernel 'wgmma_tma' copies rows that begin at multiples of 16 bytes; those of ") +
         (a ? "b" : "a") + " are " + std::to_string((a ? p.b : p.a).ld) + " elements apart";
}

Status prepare_wgmma_tma(const GemmProblem& p, int) {
  return dispatch_types(TensorTypes{}, p, [](auto types) {
    cudaFuncSetAttribute(wgmma_tma<decltype(types)>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         kSharedBytes);
    return launch_status("wgmma_tma");
  });
}

Status launch_wgmma_tma(const GemmProblem& p, const GemmBuffers& buffers, const Executor& executor) {
  if (p.output_empty()) return {};
  return dispatch_types(TensorTypes{}, p, [&](auto types) -> Status {
    using T = decltype(types);
    Parameters<T> product{{p, buffers, kBlockM, kBlockN}, {}, {}};
    if (!product.grid.fits()) return {"kernel 'wgmma_tma' launches at most 2147483647 blocks a product"};
    if (p.k > 0) {  // a tensor has no extents of 0
      if (Status s = encode(p, p.a, buffers.a, product.a.along_k, p.m, &product.a_map); !s.ok()) return s;
      if (Status s = encode(p, p.b, buffers.b, product.b.along_k, p.n, &product.b_map); !s.ok()) return s;
    }
    dim3 blocks = product.grid.blocks();
    blocks.z = static_cast<unsigned>(ceil_div(p.batch_count(), blocks.y));
    wgmma_tma<T><<<blocks, kThreads, kSharedBytes, executor.stream>>>(product);
    return launch_status("wgmma_tma");
  });
}

}  // namespace jaxgemm::cuda
