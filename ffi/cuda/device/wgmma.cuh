// Warpgroup matrix instructions on 16-bit operands in shared memory, accumulating in fp32 registers.
//
// A warpgroup of 128 threads computes 64 x N x 16. Both operands lie in shared memory as the copy engine's
// swizzle leaves them, in either major, and are named by descriptors. Lane l of warp w holds, for
// each block of 8 columns j, rows 16w + l/4 (registers 4j, 4j + 1) and 16w + l/4 + 8 (4j + 2, 4j + 3),
// columns 8j + 2(l % 4) and the next.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "major.h"
#include "ptx.cuh"

namespace jaxgemm::cuda {

// Before the first of a group of wgmmas: registers and descriptors written so far are theirs to read.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving a use of the accumulators above the wait that makes them valid.
template <int kCount>
__device__ __forceinline__ void wgmma_pin(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Operand tiles are 64 elements of k deep:
//  kK:  row r at byte 128 r, in the 128-byte swizzle; groups of 8 rows repeat every 1024 bytes (stride
//  offset). kMN: blocks of kBlock rows, each 64 k-lines of kBlock elements in the swizzle as wide as a line:
//  8 k repeat at the
//       stride offset, the next block of rows follows at the leading offset.
// Addresses and offsets count 16-byte units.
template <Major kMajor, int kBlock = 64>
struct OperandTile {
  static_assert(kBlock == 64 || (kBlock == 32 && kMajor == Major::kMN));
  static constexpr uint32_t kLine = 2 * kBlock / 16;
  static constexpr uint32_t kRows64 = 64 * 128 / 16;                                // 64 rows on
  static constexpr uint32_t kStepK16 = kMajor == Major::kK ? 32 / 16 : 16 * kLine;  // 16 of k on

  __device__ static __forceinline__ uint64_t descriptor(uint32_t address) {
    constexpr uint64_t kSwizzle = uint64_t(kBlock == 64 ? 1 : 2) << 62;
    constexpr uint64_t kStride = uint64_t(8 * kLine) << 32;
    constexpr uint64_t kLeading = uint64_t(kMajor == Major::kK ? 1 : 64 * kLine) << 16;
    return kSwizzle | kStride | kLeading | ((address & 0x3ffff) >> 4);
  }
};

// A tile further on: no address reaches the fields above it, and half the arithmetic of 64 bits between two
// wgmmas is worth having.
__device__ __forceinline__ uint64_t advance(uint64_t descriptor, uint32_t units) {
  return descriptor >> 32 << 32 | (static_cast<uint32_t>(descriptor) + units);
}

// Wgmma<In, kN, kMajorA, kMajorB>::mma(d, a, b, accumulate): d = a * b (+ d).
template <typename In, int kN, Major kMajorA, Major kMajorB>
struct Wgmma;

// The instruction's register list cannot be built from a constant, so the shapes are spelled out. NOLINTBEGIN
// clang-format off
#define JAXGEMM_REGS8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), \
                         "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define JAXGEMM_WGMMA_TYPE(In, ptx, N, A, B, ACC, TA, TB, regs, ...)                                              \
  template <Major kMajorA, Major kMajorB>                                                                         \
  struct Wgmma<In, N, kMajorA, kMajorB> {                                                                         \
    __device__ static __forceinline__ void mma(float (&d)[N / 2], uint64_t a, uint64_t b, uint32_t accumulate) {  \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" ACC ", 0;\n"                                              \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." ptx "." ptx                                  \
                   " {" regs "}, %" A ", %" B ", p, 1, 1, %" TA ", %" TB ";\n}"                                   \
                   : __VA_ARGS__                                                                                  \
                   : "l"(a), "l"(b), "r"(accumulate), "n"(int(kMajorA)), "n"(int(kMajorB)));                      \
    }                                                                                                             \
  };
#define JAXGEMM_WGMMA(...)                              \
  JAXGEMM_WGMMA_TYPE(__nv_bfloat16, "bf16", __VA_ARGS__) \
  JAXGEMM_WGMMA_TYPE(__half, "f16", __VA_ARGS__)

JAXGEMM_WGMMA(16, "8", "9", "10", "11", "12",
              "%0,%1,%2,%3,%4,%5,%6,%7",
              JAXGEMM_REGS8(0))
JAXGEMM_WGMMA(32, "16", "17", "18", "19", "20",
              "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15",
              JAXGEMM_REGS8(0), JAXGEMM_REGS8(8))
JAXGEMM_WGMMA(64, "32", "33", "34", "35", "36",
              "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,"
              "%26,%27,%28,%29,%30,%31",
              JAXGEMM_REGS8(0), JAXGEMM_REGS8(8), JAXGEMM_REGS8(16), JAXGEMM_REGS8(24))
JAXGEMM_WGMMA(96, "48", "49", "50", "51", "52",
              "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,"
              "%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47",
              JAXGEMM_REGS8(0), JAXGEMM_REGS8(8), JAXGEMM_REGS8(16), JAXGEMM_REGS8(24), JAXGEMM_REGS8(32),
              JAXGEMM_REGS8(40))
JAXGEMM_WGMMA(112, "56", "57", "58", "59", "60",
              "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
              "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,"
              "%46,%47,%48,%49,%50,%51,%52,%53,%54,%55",
              JAXGEMM_REGS8(0), JAXGEMM_REGS8(8), JAXGEMM_REGS8(16), JAXGEMM_REGS8(24),
              JAXGEMM_REGS8(32), JAXGEMM_REGS8(40), JAXGEMM_REGS8(48))
JAXGEMM_WGMMA(128, "64", "65", "66", "67", "68",
              "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,"
              "%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,"
              "%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63",
              JAXGEMM_REGS8(0), JAXGEMM_REGS8(8), JAXGEMM_REGS8(16), JAXGEMM_REGS8(24), JAXGEMM_REGS8(32),
              JAXGEMM_REGS8(40), JAXGEMM_REGS8(48), JAXGEMM_REGS8(56))
JAXGEMM_WGMMA(144, "72", "73", "74", "75", "76",
              "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
              "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,"
              "%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,"
              "%68,%69,%70,%71",
              JAXGEMM_REGS8(0), JAXGEMM_REGS8(8), JAXGEMM_REGS8(16), JAXGEMM_REGS8(24),
              JAXGEMM_REGS8(32), JAXGEMM_REGS8(40), JAXGEMM_REGS8(48), JAXGEMM_REGS8(56),
              JAXGEMM_REGS8(64))
JAXGEMM_WGMMA(160, "80", "81", "82", "83", "84",
              "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,"
              "%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,"
              "%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,"
              "%72,%73,%74,%75,%76,%77,%78,%79",
              JAXGEMM_REGS8(0), JAXGEMM_REGS8(8), JAXGEMM_REGS8(16), JAXGEMM_REGS8(24), JAXGEMM_REGS8(32),
              JAXGEMM_REGS8(40), JAXGEMM_REGS8(48), JAXGEMM_REGS8(56), JAXGEMM_REGS8(64), JAXGEMM_REGS8(72))
JAXGEMM_WGMMA(176, "88", "89", "90", "91", "92",
              "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
              "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,"
              "%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,"
              "%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87",
              JAXGEMM_REGS8(0), JAXGEMM_REGS8(8), JAXGEMM_REGS8(16), JAXGEMM_REGS8(24),
              JAXGEMM_REGS8(32), JAXGEMM_REGS8(40), JAXGEMM_REGS8(48), JAXGEMM_REGS8(56),
              JAXGEMM_REGS8(64), JAXGEMM_REGS8(72), JAXGEMM_REGS8(80))
JAXGEMM_WGMMA(192, "96", "97", "98", "99", "100",
              "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,"
              "%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,"
              "%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,"
              "%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,"
              "%95",
              JAXGEMM_REGS8(0), JAXGEMM_REGS8(8), JAXGEMM_REGS8(16), JAXGEMM_REGS8(24), JAXGEMM_REGS8(32),
              JAXGEMM_REGS8(40), JAXGEMM_REGS8(48), JAXGEMM_REGS8(56), JAXGEMM_REGS8(64),
              JAXGEMM_REGS8(72), JAXGEMM_REGS8(80), JAXGEMM_REGS8(88))
JAXGEMM_WGMMA(208, "104", "105", "106", "107", "108",
              "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"
              "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,"
              "%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,"
              "%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,"
              "%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103",
              JAXGEMM_REGS8(0), JAXGEMM_REGS8(8), JAXGEMM_REGS8(16), JAXGEMM_REGS8(24),
              JAXGEMM_REGS8(32), JAXGEMM_REGS8(40), JAXGEMM_REGS8(48), JAXGEMM_REGS8(56),
              JAXGEMM_REGS8(64), JAXGEMM_REGS8(72), JAXGEMM_REGS8(80), JAXGEMM_REGS8(88),
              JAXGEMM_REGS8(96))
JAXGEMM_WGMMA(224, "112", "113", "114", "115", "116",
              "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,"
              "%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,"
              "%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,"
              "%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,"
              "%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111",
              JAXGEMM_REGS8(0), JAXGEMM_REGS8(8), JAXGEMM_REGS8(16), JAXGEMM_REGS8(24), JAXGEMM_REGS8(32),
              JAXGEMM_REGS8(40), JAXGEMM_REGS8(48), JAXGEMM_REGS8(56), JAXGEMM_REGS8(64),
              JAXGEMM_REGS8(72), JAXGEMM_REGS8(80), JAXGEMM_REGS8(88), JAXGEMM_REGS8(96),
              JAXGEMM_REGS8(104))
JAXGEMM_WGMMA(256, "128", "129", "130", "131", "132",
              "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,"
              "%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,"
              "%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,"
              "%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,"
              "%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,"
              "%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127",
              JAXGEMM_REGS8(0), JAXGEMM_REGS8(8), JAXGEMM_REGS8(16), JAXGEMM_REGS8(24), JAXGEMM_REGS8(32),
              JAXGEMM_REGS8(40), JAXGEMM_REGS8(48), JAXGEMM_REGS8(56), JAXGEMM_REGS8(64),
              JAXGEMM_REGS8(72), JAXGEMM_REGS8(80), JAXGEMM_REGS8(88), JAXGEMM_REGS8(96),
              JAXGEMM_REGS8(104), JAXGEMM_REGS8(112), JAXGEMM_REGS8(120))

#undef JAXGEMM_WGMMA
#undef JAXGEMM_WGMMA_TYPE
#undef JAXGEMM_REGS8
// clang-format on
// NOLINTEND

}  // namespace jaxgemm::cuda
