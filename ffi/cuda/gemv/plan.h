// How a product of a matrix with a few vectors is cut into blocks: a pure function of the problem. Host code.
//
// The matrix W is the operand with many rows (op(A)) or columns (op(B)); its `length` of them give as many
// results for each vector. Its memory is made of lines, contiguous either along k (one line a result) or
// across it (one line a value of k).
#pragma once

#include <string>

#include "../../kernel.h"

namespace jaxgemm::cuda::gemv {

constexpr int kWarps = 8;  // of a block
constexpr int kThreads = 32 * kWarps;
constexpr int kMaxSplits = 8;  // the largest cluster that every device with clusters can launch

// Vectors that are multiplied together: the columns of a tensor-core instruction, or for fp32 of a loop. More
// vectors take more passes over the matrix.
constexpr int max_vectors(DType operand) { return operand == DType::kF32 ? 4 : 8; }
// Results of a warp, whose 8 quads of lanes load the matrix. For lines along k a quad has two lines, for
// lines across k it has 16 bytes of each line.
constexpr int warp_length(bool along_k, int element_bytes) { return along_k ? 16 : 8 * 16 / element_bytes; }

struct Plan {
  bool swapped = false;  // W is op(A), the vectors are columns of op(B)
  bool along_k = false;  // W's lines run along k
  int64_t length = 0;
  int warps_k = kWarps;  // warps that share K; the others have results of their own
  int splits = 1;        // blocks of a cluster that share K
  int tile_length = 0;   // results of a block, for each vector
  int64_t tiles = 0;
  double microseconds = 0;  // that the model expects
};

// The values of the row's options, in their order. Zero leaves the choice to the model.
enum Option { kWarpsK, kSplits };

// `clusters`: whether a cluster's blocks can share K. `reason` says what is wrong with the problem, or is
// empty.
Plan make_plan(const GemmProblem& problem, bool clusters, std::string* reason);

}  // namespace jaxgemm::cuda::gemv
