// Where a thread's sums over K wait while it sums up the next chunk of K: in registers, where they have room
// for two sets, else in shared memory. D would be slower, above all if its rows are not aligned.
#pragma once

#include "tile.cuh"

namespace jaxgemm::cuda::simt {

// For tiles that sum up K in one chunk: no sums wait.
struct NoHome {
  template <typename Acc>
  __device__ __forceinline__ explicit NoHome(Acc*) {}
  template <typename Acc>
  __device__ __forceinline__ void add_to(Acc&) const {}
  template <typename Acc>
  __device__ __forceinline__ void take(Acc&) const {}
};

// The sums lie behind the stages. A thread reads its own sums only, which takes no barrier, and neighbouring
// threads' sums are neighbours, which avoids bank conflicts.
template <typename Tile>
struct SharedHome {
  float* stages;

  __device__ __forceinline__ explicit SharedHome(float* shared) : stages(shared) {}

  __device__ __forceinline__ float4* first() const {
    // threadIdx.x, read again: the compiler would keep a register for the value that it has already seen.
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return reinterpret_cast<float4*>(stages + Tile::kStages * (Tile::kStageA + Tile::kStageB)) + thread;
  }
  __device__ __forceinline__ void add_to(float (&acc)[Tile::TM][Tile::TN]) const {
    const float4* const from = first();
#pragma unroll
    for (int i = 0; i < Tile::TM; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::TN; j += 4) {
        const float4 sum = from[(i * Tile::TN + j) / 4 * Tile::kThreads];
        acc[i][j] += sum.x;
        acc[i][j + 1] += sum.y;
        acc[i][j + 2] += sum.z;
        acc[i][j + 3] += sum.w;
      }
    }
  }
  __device__ __forceinline__ void take(float (&acc)[Tile::TM][Tile::TN]) const {
    float4* const to = first();
#pragma unroll
    for (int i = 0; i < Tile::TM; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::TN; j += 4) {
        to[(i * Tile::TN + j) / 4 * Tile::kThreads] =
            make_float4(acc[i][j], acc[i][j + 1], acc[i][j + 2], acc[i][j + 3]);
        acc[i][j] = acc[i][j + 1] = acc[i][j + 2] = acc[i][j + 3] = 0;
      }
    }
  }
};

template <typename Tile>
struct RegisterHome {
  float sum[Tile::TM][Tile::TN] = {};

  __device__ __forceinline__ explicit RegisterHome(float*) {}

  __device__ __forceinline__ void add_to(float (&acc)[Tile::TM][Tile::TN]) const {
#pragma unroll
    for (int i = 0; i < Tile::TM; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::TN; ++j) acc[i][j] += sum[i][j];
    }
  }
  __device__ __forceinline__ void take(float (&acc)[Tile::TM][Tile::TN]) {
#pragma unroll
    for (int i = 0; i < Tile::TM; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::TN; ++j) {
        sum[i][j] = acc[i][j];
        acc[i][j] = 0;
      }
    }
  }
};

template <typename Tile>
using HomeOf = std::conditional_t<
    Tile::kHome == Home::kNone, NoHome,
    std::conditional_t<Tile::kHome == Home::kRegisters, RegisterHome<Tile>, SharedHome<Tile>>>;

}  // namespace jaxgemm::cuda::simt
