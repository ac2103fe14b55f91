// Cuts a pass over both operands into pieces, for passes that write operands anew with rows along k.
#pragma once

#include <algorithm>

#include "../../arithmetic.h"
#include "../device/divisor.cuh"
#include "../planning.h"
#include "copied.h"

namespace jaxgemm::cuda::sm90 {

template <typename Element>
struct PieceWork {
  CopiedOperand<Element> x;
  Divisor steps, blocks;    // pieces along k, and pieces of one matrix
  Divisor inner;            // matrices of the inner batch
  uint32_t blocks_end = 0;  // where the operand's pieces end and the next operand's begin
};

template <typename Element>
struct Pieces {
  PieceWork<Element> work[2];

  uint32_t count() const { return work[1].blocks_end; }
};

// Makes pieces of kRows rows by kStep of k. Returns false if there are too many pieces.
template <int kRows, int kStep, typename Element>
bool make_pieces(const CopiedOperand<Element> (&operands)[2], Pieces<Element>* pieces) {
  int64_t blocks = 0;
  for (int i = 0; i < 2; ++i) {
    const CopiedOperand<Element>& x = operands[i];
    const int64_t steps = std::max<int64_t>(1, ceil_div(x.k, kStep)), own = steps * ceil_div(x.rows, kRows);
    blocks += own * x.batch_outer * x.batch_inner;
    if (blocks > INT32_MAX / 2) return false;
    pieces->work[i] = {x, Divisor(static_cast<uint32_t>(steps)),
                       Divisor(static_cast<uint32_t>(std::max<int64_t>(1, own))),
                       Divisor(static_cast<uint32_t>(x.batch_inner)), static_cast<uint32_t>(blocks)};
  }
  return true;
}

// Blocks of a launch: no more than run at a time, so that all blocks end at once if there is nothing to do.
template <typename Element>
unsigned grid_of(const Pieces<Element>& pieces, int blocks_each) {
  return std::min<uint32_t>(pieces.count(), blocks_each * kModelSms);
}

// Calls run(operand, from, batch, first_row, first_k) for each piece of this block; `from` is where the
// piece's matrix begins.
template <int kRows, int kStep, typename Element, typename Run>
__device__ __forceinline__ void for_pieces(const Pieces<Element>& pieces, Run&& run) {
  for (uint32_t index = blockIdx.x; index < pieces.work[1].blocks_end; index += gridDim.x) {
    const bool second = index >= pieces.work[0].blocks_end;
    const PieceWork<Element>& work = pieces.work[second];
    const CopiedOperand<Element>& x = work.x;
    const uint32_t piece = index - (second ? pieces.work[0].blocks_end : 0);
    const uint32_t batch = work.blocks(piece), block = piece - batch * work.blocks.divisor;
    const uint32_t rows = work.steps(block), step = block - rows * work.steps.divisor;
    const uint32_t outer = work.inner(batch), inner = batch - outer * work.inner.divisor;
    const Element* const from = x.from + outer * x.outer_stride + inner * x.inner_stride;
    run(x, from, batch, static_cast<int>(rows) * kRows, static_cast<int>(step) * kStep);
  }
}

}  // namespace jaxgemm::cuda::sm90
