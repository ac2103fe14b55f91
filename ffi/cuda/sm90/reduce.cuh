// The second kernel of a split K: partial results are added in the order of their splits, and finished.
#pragma once

#include "../device/epilogue.cuh"

namespace jaxgemm::cuda::sm90 {

// `partial` holds splits x batch x m rows of `pitch` sums, fp32 or int32.
Status launch_reduce(const GemmProblem& problem, const GemmBuffers& buffers, const void* partial,
                     int64_t pitch, int splits, CUstream_st* stream);

}  // namespace jaxgemm::cuda::sm90
