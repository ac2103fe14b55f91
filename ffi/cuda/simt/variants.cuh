// From a tile's index and the copy modes to a kernel. Each source file that includes this instantiates the
// kernels of one list of tiles, so that they compile side by side.
#pragma once

#include "kernel.cuh"
#include "tiles.cuh"

namespace jaxgemm::cuda::simt {

// A kernel with its launch shape. Its only parameter is a Params of the kind it was found for.
struct Variant {
  const void* kernel = nullptr;
  int threads = 0;
};

template <typename Kind, typename Tile>
Variant find_loads(Load a, Load b) {
  const void* kernel = nullptr;
  if constexpr (sizeof(typename Kind::Element) < 4) {
    kernel = reinterpret_cast<const void*>(simt_gemm<Kind, Tile, Load::kConvert, Load::kConvert>);
  } else {
    const auto try_one = [&]<Load A, Load B>() {
      if (a == A && b == B) kernel = reinterpret_cast<const void*>(simt_gemm<Kind, Tile, A, B>);
    };
    try_one.template operator()<Load::kTranspose, Load::kRows16>();
    try_one.template operator()<Load::kTranspose, Load::kRows>();
    try_one.template operator()<Load::kTranspose, Load::kTranspose>();
    try_one.template operator()<Load::kRows16, Load::kRows16>();
    try_one.template operator()<Load::kRows, Load::kRows>();
    try_one.template operator()<Load::kRows16, Load::kTranspose>();
    try_one.template operator()<Load::kRows, Load::kTranspose>();
  }
  return {kernel, Tile::kThreads};
}

template <typename Kind, typename... Tiles>
Variant find_variant(TypeList<Tiles...>, int tile, Load a, Load b) {
  Variant found;
  int i = 0;
  ((i++ == tile ? (found = find_loads<Kind, Tiles>(a, b), true) : false) || ...);
  return found;
}

Variant find_f32_large(int tile, Load a, Load b);
Variant find_f32_small(int tile, Load a, Load b);
Variant find_f64(int tile, Load a, Load b);
Variant find_half(int tile);

}  // namespace jaxgemm::cuda::simt
