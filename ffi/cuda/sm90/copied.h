// An operand that is written anew, its rows along k: in planes (planes/split.h) or as it is (bytes/copy.h).
#pragma once

#include <cstdint>

namespace jaxgemm::cuda::sm90 {

// As rows x k. The elements of a source row are k_stride apart; either stride is 1. (In sums over the rows of
// groups these are its rows, and k is the other axis.) Without rows there is nothing to write.
template <typename Element>
struct CopiedOperand {
  const Element* from = nullptr;
  void* to = nullptr;
  uint32_t* largest = nullptr;  // of scaled planes: the bits of each row's largest finite magnitude
  int64_t rows = 0, k = 0;
  int64_t row_stride = 0, k_stride = 0;
  int64_t pitch = 0;                       // elements of a written row: k, filled up to whole steps
  int64_t row_pitch = 0, plane_pitch = 0;  // elements from row to row, and from plane to plane
  int64_t batch_outer = 1, batch_inner = 1;
  int64_t outer_stride = 0, inner_stride = 0;  // of the source; what is written is dense
};

}  // namespace jaxgemm::cuda::sm90
