// Warpgroup matrix instructions on operands in shared memory, accumulating in registers.
//
// A warpgroup of 128 threads computes 64 x N, over 32 bytes of k. Both operands lie in shared memory as the
// copy engine's swizzle leaves them, in either major, and are named by descriptors. Lane l of warp w holds,
// for each block of 8 columns j, rows 16w + l/4 (registers 4j, 4j + 1) and 16w + l/4 + 8 (4j + 2, 4j + 3),
// columns 8j + 2(l % 4) and the next.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "../../dtype.h"
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
template <int kCount>
__device__ __forceinline__ void wgmma_pin(int (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

// What is multiplied: the types of both operands, which have as many bits, and of sums.
template <typename X_, typename Y_ = X_, typename Sum_ = float>
struct Product {
  using X = X_;
  using Y = Y_;
  using Sum = Sum_;
  static_assert(sizeof(X) == sizeof(Y));
};

constexpr int kInstructionBytes = 32;  // of k

// The layout of an operand tile of 128 bytes of k, and its descriptors. Addresses and offsets count 16-byte
// units. Only 16-bit operands may be MN-major; those of 8 bits come from registers then (MN-major A, below).
//  K-major: row r lies at byte 128 r, in the 128-byte swizzle. Groups of 8 rows follow at the stride offset.
//  MN-major: blocks of kBlock rows, each of 64 lines (one for each k) of kBlock elements, in the swizzle that
//  is
//    as wide as a line. Groups of 8 lines follow at the stride offset, the next block at the leading offset.
template <Major kMajor, int kBlock = 64>
struct OperandTile {
  static_assert(kBlock == 64 || (kBlock == 32 && kMajor == Major::kMN));
  static constexpr uint32_t kLine = 2 * kBlock / 16;
  static constexpr uint32_t kRows64 = 64 * 128 / 16;  // to the next 64 rows
  // To what the next instruction takes.
  static constexpr uint32_t kStep = kMajor == Major::kK ? kInstructionBytes / 16 : 16 * kLine;

  __device__ static __forceinline__ uint64_t descriptor(uint32_t address) {
    constexpr uint64_t kSwizzle = uint64_t(kBlock == 64 ? 1 : 2) << 62;
    constexpr uint64_t kStride = uint64_t(8 * kLine) << 32;
    constexpr uint64_t kLeading = uint64_t(kMajor == Major::kK ? 1 : 64 * kLine) << 16;
    return kSwizzle | kStride | kLeading | ((address & 0x3ffff) >> 4);
  }
};

// The descriptor of a tile `units` further on. Only the lower half is added to, as no address overflows its
// field: that takes half the instructions of a 64-bit addition, and they stand between two wgmmas.
__device__ __forceinline__ uint64_t advance(uint64_t descriptor, uint32_t units) {
  return descriptor >> 32 << 32 | (static_cast<uint32_t>(descriptor) + units);
}

// Wgmma<Product, kN, kMajorA, kMajorB>::mma(d, a, b, accumulate): d = a * b (+ d).
template <typename Product, int kN, Major kMajorA, Major kMajorB>
struct Wgmma;

// The instruction's register list cannot be built from a constant, so lists are spelled out, each from the
// one before. NOLINTBEGIN
// clang-format off
#define JAXGEMM_REGS(C, i) C(d[i]), C(d[i + 1]), C(d[i + 2]), C(d[i + 3]), \
                           C(d[i + 4]), C(d[i + 5]), C(d[i + 6]), C(d[i + 7])
#define JAXGEMM_NAMES8 "%0,%1,%2,%3,%4,%5,%6,%7"
#define JAXGEMM_NAMES16 JAXGEMM_NAMES8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define JAXGEMM_NAMES24 JAXGEMM_NAMES16 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define JAXGEMM_NAMES32 JAXGEMM_NAMES24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define JAXGEMM_NAMES40 JAXGEMM_NAMES32 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define JAXGEMM_NAMES48 JAXGEMM_NAMES40 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define JAXGEMM_NAMES56 JAXGEMM_NAMES48 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define JAXGEMM_NAMES64 JAXGEMM_NAMES56 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define JAXGEMM_NAMES72 JAXGEMM_NAMES64 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define JAXGEMM_NAMES80 JAXGEMM_NAMES72 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define JAXGEMM_NAMES88 JAXGEMM_NAMES80 ",%80,%81,%82,%83,%84,%85,%86,%87"
#define JAXGEMM_NAMES96 JAXGEMM_NAMES88 ",%88,%89,%90,%91,%92,%93,%94,%95"
#define JAXGEMM_NAMES104 JAXGEMM_NAMES96 ",%96,%97,%98,%99,%100,%101,%102,%103"
#define JAXGEMM_NAMES112 JAXGEMM_NAMES104 ",%104,%105,%106,%107,%108,%109,%110,%111"
#define JAXGEMM_NAMES120 JAXGEMM_NAMES112 ",%112,%113,%114,%115,%116,%117,%118,%119"
#define JAXGEMM_NAMES128 JAXGEMM_NAMES120 ",%120,%121,%122,%123,%124,%125,%126,%127"
#define JAXGEMM_REGS8(C) JAXGEMM_REGS(C, 0)
#define JAXGEMM_REGS16(C) JAXGEMM_REGS8(C), JAXGEMM_REGS(C, 8)
#define JAXGEMM_REGS24(C) JAXGEMM_REGS16(C), JAXGEMM_REGS(C, 16)
#define JAXGEMM_REGS32(C) JAXGEMM_REGS24(C), JAXGEMM_REGS(C, 24)
#define JAXGEMM_REGS40(C) JAXGEMM_REGS32(C), JAXGEMM_REGS(C, 32)
#define JAXGEMM_REGS48(C) JAXGEMM_REGS40(C), JAXGEMM_REGS(C, 40)
#define JAXGEMM_REGS56(C) JAXGEMM_REGS48(C), JAXGEMM_REGS(C, 48)
#define JAXGEMM_REGS64(C) JAXGEMM_REGS56(C), JAXGEMM_REGS(C, 56)
#define JAXGEMM_REGS72(C) JAXGEMM_REGS64(C), JAXGEMM_REGS(C, 64)
#define JAXGEMM_REGS80(C) JAXGEMM_REGS72(C), JAXGEMM_REGS(C, 72)
#define JAXGEMM_REGS88(C) JAXGEMM_REGS80(C), JAXGEMM_REGS(C, 80)
#define JAXGEMM_REGS96(C) JAXGEMM_REGS88(C), JAXGEMM_REGS(C, 88)
#define JAXGEMM_REGS104(C) JAXGEMM_REGS96(C), JAXGEMM_REGS(C, 96)
#define JAXGEMM_REGS112(C) JAXGEMM_REGS104(C), JAXGEMM_REGS(C, 104)
#define JAXGEMM_REGS120(C) JAXGEMM_REGS112(C), JAXGEMM_REGS(C, 112)
#define JAXGEMM_REGS128(C) JAXGEMM_REGS120(C), JAXGEMM_REGS(C, 120)

// The instruction for N columns, whose accumulators are COUNT registers of a thread. A, B, ACC, TA and TB are the
// numbers of the operands that follow these registers.
#define JAXGEMM_WGMMA_TYPE(In, ptx, N, COUNT, A, B, ACC, TA, TB)                                                 \
  template <Major kMajorA, Major kMajorB>                                                                        \
  struct Wgmma<Product<In>, N, kMajorA, kMajorB> {                                                               \
    __device__ static __forceinline__ void mma(float (&d)[COUNT], uint64_t a, uint64_t b, uint32_t accumulate) { \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" ACC ", 0;\n"                                             \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." ptx "." ptx                                 \
                   " {" JAXGEMM_NAMES##COUNT "}, %" A ", %" B ", p, 1, 1, %" TA ", %" TB ";\n}"                  \
                   : JAXGEMM_REGS##COUNT("+f")                                                                   \
                   : "l"(a), "l"(b), "r"(accumulate), "n"(int(kMajorA)), "n"(int(kMajorB)));                     \
    }                                                                                                            \
  };
// The same for 8-bit operands, which are K-major; FLAGS are the instruction's last operands.
#define JAXGEMM_WGMMA_8BIT(X, Y, Sum, types, C, FLAGS, N, COUNT, A, B, ACC)                                       \
  template <>                                                                                                    \
  struct Wgmma<Product<X, Y, Sum>, N, Major::kK, Major::kK> {                                                    \
    __device__ static __forceinline__ void mma(Sum (&d)[COUNT], uint64_t a, uint64_t b, uint32_t accumulate) {   \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" ACC ", 0;\n"                                             \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k32." types                                           \
                   " {" JAXGEMM_NAMES##COUNT "}, %" A ", %" B ", p" FLAGS ";\n}"                                 \
                   : JAXGEMM_REGS##COUNT(C)                                                                      \
                   : "l"(a), "l"(b), "r"(accumulate));                                                           \
    }                                                                                                            \
  };
// And with 64 rows of A from registers, a thread's 4; B1 to ACC1 are the numbers of the operands that follow those.
#define JAXGEMM_WGMMA_8BIT_TURNED(X, Y, Sum, types, C, FLAGS, N, COUNT, A, A1, A2, A3, B1, ACC1)                  \
  template <>                                                                                                    \
  struct Wgmma<Product<X, Y, Sum>, N, Major::kMN, Major::kK> {                                                   \
    __device__ static __forceinline__ void mma(Sum (&d)[COUNT], const uint32_t (&a)[4], uint64_t b,              \
                                               uint32_t accumulate) {                                            \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" ACC1 ", 0;\n"                                            \
                   "wgmma.mma_async.sync.aligned.m64n" #N "k32." types                                           \
                   " {" JAXGEMM_NAMES##COUNT "}, {%" A ", %" A1 ", %" A2 ", %" A3 "}, %" B1 ", p" FLAGS ";\n}"  \
                   : JAXGEMM_REGS##COUNT(C)                                                                      \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));                       \
    }                                                                                                            \
  };
#define JAXGEMM_WGMMA_FP8(FORM, X, Y, types, ...) FORM(X, Y, float, "f32." types, "+f", ", 1, 1", __VA_ARGS__)
#define JAXGEMM_WGMMA_INT8(FORM, X, Y, types, ...) FORM(X, Y, int32_t, "s32." types, "+r", "", __VA_ARGS__)
#define JAXGEMM_WGMMA_ALL_8BIT(FORM, ...)                           \
  JAXGEMM_WGMMA_FP8(FORM, E4M3, E4M3, "e4m3.e4m3", __VA_ARGS__)   \
  JAXGEMM_WGMMA_FP8(FORM, E4M3, E5M2, "e4m3.e5m2", __VA_ARGS__)   \
  JAXGEMM_WGMMA_FP8(FORM, E5M2, E4M3, "e5m2.e4m3", __VA_ARGS__)   \
  JAXGEMM_WGMMA_FP8(FORM, E5M2, E5M2, "e5m2.e5m2", __VA_ARGS__)   \
  JAXGEMM_WGMMA_INT8(FORM, int8_t, int8_t, "s8.s8", __VA_ARGS__)                    \
  JAXGEMM_WGMMA_INT8(FORM, int8_t, uint8_t, "s8.u8", __VA_ARGS__)                   \
  JAXGEMM_WGMMA_INT8(FORM, uint8_t, int8_t, "u8.s8", __VA_ARGS__)                   \
  JAXGEMM_WGMMA_INT8(FORM, uint8_t, uint8_t, "u8.u8", __VA_ARGS__)
#define JAXGEMM_WGMMA(...)                               \
  JAXGEMM_WGMMA_TYPE(__nv_bfloat16, "bf16", __VA_ARGS__) \
  JAXGEMM_WGMMA_TYPE(__half, "f16", __VA_ARGS__)

JAXGEMM_WGMMA(16, 8, "8", "9", "10", "11", "12")
JAXGEMM_WGMMA(32, 16, "16", "17", "18", "19", "20")
JAXGEMM_WGMMA(64, 32, "32", "33", "34", "35", "36")
JAXGEMM_WGMMA(96, 48, "48", "49", "50", "51", "52")
JAXGEMM_WGMMA(112, 56, "56", "57", "58", "59", "60")
JAXGEMM_WGMMA(128, 64, "64", "65", "66", "67", "68")
JAXGEMM_WGMMA(144, 72, "72", "73", "74", "75", "76")
JAXGEMM_WGMMA(160, 80, "80", "81", "82", "83", "84")
JAXGEMM_WGMMA(176, 88, "88", "89", "90", "91", "92")
JAXGEMM_WGMMA(192, 96, "96", "97", "98", "99", "100")
JAXGEMM_WGMMA(208, 104, "104", "105", "106", "107", "108")
JAXGEMM_WGMMA(224, 112, "112", "113", "114", "115", "116")
JAXGEMM_WGMMA(256, 128, "128", "129", "130", "131", "132")

JAXGEMM_WGMMA_ALL_8BIT(JAXGEMM_WGMMA_8BIT, 16, 8, "8", "9", "10")
JAXGEMM_WGMMA_ALL_8BIT(JAXGEMM_WGMMA_8BIT, 64, 32, "32", "33", "34")
JAXGEMM_WGMMA_ALL_8BIT(JAXGEMM_WGMMA_8BIT, 128, 64, "64", "65", "66")
JAXGEMM_WGMMA_ALL_8BIT(JAXGEMM_WGMMA_8BIT, 256, 128, "128", "129", "130")
JAXGEMM_WGMMA_ALL_8BIT(JAXGEMM_WGMMA_8BIT_TURNED, 16, 8, "8", "9", "10", "11", "12", "13")
JAXGEMM_WGMMA_ALL_8BIT(JAXGEMM_WGMMA_8BIT_TURNED, 64, 32, "32", "33", "34", "35", "36", "37")
JAXGEMM_WGMMA_ALL_8BIT(JAXGEMM_WGMMA_8BIT_TURNED, 128, 64, "64", "65", "66", "67", "68", "69")
JAXGEMM_WGMMA_ALL_8BIT(JAXGEMM_WGMMA_8BIT_TURNED, 256, 128, "128", "129", "130", "131", "132", "133")

#undef JAXGEMM_WGMMA_ALL_8BIT
#undef JAXGEMM_WGMMA_INT8
#undef JAXGEMM_WGMMA_FP8
#undef JAXGEMM_WGMMA_8BIT_TURNED
#undef JAXGEMM_WGMMA_8BIT
#undef JAXGEMM_WGMMA
#undef JAXGEMM_WGMMA_TYPE
// clang-format on
// NOLINTEND

}  // namespace jaxgemm::cuda
