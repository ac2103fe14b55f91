// Which units a block has, by the kind of product.
#pragma once

#include "groups.cuh"
#include "many.cuh"
#include "tile_units.cuh"

namespace jaxgemm::cuda::sm90 {

template <typename E>
using Units = std::conditional_t<E::kMany, ManyUnits<E>,
                                 std::conditional_t<E::kHasGroups, GroupUnits<E>, TileUnits<E>>>;

}  // namespace jaxgemm::cuda::sm90
