// Where a thread's sums over K stay while it sums up the next chunk of K: in registers, where they have room
// for two sets, else in shared memory. A trip home and back takes a hundredth of a chunk's time.
//
// D itself would be a third place: 4 % slower where its rows are aligned, and by a third where they are not.
#pragma once

#include "tile.cuh"

namespace jaxgemm::cuda::simt {

// The sums stay where they are.
struct NoHome {
  template <typename Acc>
  __device__ __forceinline__ explicit NoHome(Acc*) {}
  template <typename Acc>
  __device__ __forceinline__ void add_to(Acc&) const {}
  template <typename Acc>
  __device__ __forceinline__ void take(Acc&) const {}
};

// Behind the stages. Only the thread itself reads its sums, so nobody waits, and a thread's neighbour is its
// neighbour there, so no two use the same bank.
template <typename Tile>
struct SharedHome {
  float* stages;

  __device__ __forceinline__ explicit SharedHome(float* shared) : stages(shared) {}

  __device__ __forceinline__ float4* first() const {
    // threadIdx.x, read again: the compiler would keep a register for one that it has seen.
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
