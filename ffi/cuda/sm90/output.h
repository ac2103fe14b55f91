// What the epilogue of a launch does with results, and where they go. Needs no CUDA.
#pragma once

#include "../../problem.h"

namespace jaxgemm::cuda::sm90 {

// How results get to D. Each path has code of its own: when a kernel starts its instructions are not cached,
// and a short product takes as long to fetch them as to multiply, so the code that runs should lie together.
enum class StorePath : uint8_t {
  kTma,             // 16-bit results, with no epilogue, by the copy engine
  kTmaFinished,     // 16-bit results times alpha, with C, a bias and an activation of short code, likewise
  kByWarp,          // 16-bit results times alpha, by the warp's own stores, to rows of any alignment
  kByWarpFinished,  // the same with a bias and an activation of short code
  kFp32,            // fp32 results with no epilogue, in pairs unless operands are swapped
  kElements,        // everything else, one element at a time
};

// Bytes that D, C and the bias begin at multiples of. XLA's buffers begin at larger ones.
struct ResultAlignment {
  int d = 16, c = 16, bias = 16;
};

// How a problem's results leave, or with `partial` its partial results where K is split: a pure function,
// which the cost model asks too.
StorePath store_path(const GemmProblem& problem, bool swap, bool partial, ResultAlignment aligned = {});

// The part of a kernel's parameters that is about results. Rows and columns are those of D, whether or not
// operands are swapped.
struct Output {
  void* d;
  const void* c;     // null: none
  const void* bias;  // null: none
  int64_t rows, cols;
  int64_t pitch;         // elements from row to row
  int64_t batch_stride;  // elements from product to product
  int64_t split_stride;  // elements from one split's partial result to the next one's
  float alpha, beta;
  Activation activation;
  bool swap;  // the engine's rows are D's columns
  bool f32;   // D has 32 bits, as partial results have; otherwise 16
  StorePath path;
  // Of operands of 8 bits, in the engine's rows and columns: what their values are multiplied by, and whether
  // by one number for each row or column; null: not at all.
  const float *x_scale, *y_scale;
  bool x_lines, y_lines;
  bool scaled;  // whether there is a scale
  bool bf16;    // whether 16-bit results are bf16 rather than fp16
};

struct Plan;

// The output of a launch: D, or the workspace's partial results where K is split.
Output output_of(const Plan& plan, const GemmProblem& problem, const GemmBuffers& buffers);

}  // namespace jaxgemm::cuda::sm90
