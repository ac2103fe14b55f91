"""What callers of grouped products pass, checked and brought into one form."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.typing import ArrayLike

from jaxgemm import precision as prec
from jaxgemm._jax_private import explicit_axes
from jaxgemm.products.arguments import as_array, check_kernel
from jaxgemm.ragged import groups


def where(function: str, sizes: ArrayLike, offset: ArrayLike | None, held: int) -> tuple[jax.Array, jax.Array]:
    """Sizes and offset as the primitives take them, for the weights of ``held`` groups.

    Raises:
        TypeError: the sizes or the offset are no integers.
        ValueError: the sizes or the offset have another shape, or there are fewer weights than groups and no offset.
    """
    found = integers("group_sizes", sizes)
    if found.ndim != 1:
        raise ValueError(f"{function}: group_sizes must have shape (groups,), got {found.shape}")
    if not isinstance(found.shape[0], int):
        raise TypeError(f"{function}: the number of groups must be known, got the symbol {found.shape[0]}")
    if offset is None and found.shape[0] != held:
        raise ValueError(
            f"{function}: {found.shape[0]} group sizes for the weights of {held} groups; with fewer weights than "
            "groups, group_offset says which groups they are of"
        )
    return groups.narrow(found), first_group(offset)


def first_group(given: ArrayLike | None) -> jax.Array:
    """The offset as the primitives take it; without one it is 0."""
    if given is None:
        none: jax.Array = _no_offset()
        return none
    offset = integers("group_offset", given)
    if offset.shape not in ((), (1,)):
        raise ValueError(f"group_offset: expected one integer, of shape (1,), got shape {offset.shape}")
    return groups.narrow(offset.reshape(1))


@partial(jax.jit, inline=True)  # else an eager call would bring the 0 from the host
def _no_offset() -> jax.Array:
    return jnp.zeros((1,), groups.SIZES)


def integers(name: str, given: ArrayLike) -> jax.Array:
    """The argument as an array; TypeError if it has no integers."""
    array = as_array(name, given)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        raise TypeError(f"{name}: expected integers, got {array.dtype}")
    return array


def parameters(
    *,
    precision: prec.Precision,
    out: np.dtype,
    kernel: str,
    out_sharding: NamedSharding | None = None,
    batch_invariant: bool = False,
    strict: bool = True,
) -> dict[str, Any]:
    """The parameters that the primitives of grouped products have in common.

    Raises:
        ValueError: no kernel has that name, or XLA's products are asked to be batch-invariant.
    """
    check_kernel(kernel, batch_invariant, products="products do")
    return {
        "precision": prec.canonical(precision),
        "preferred_element_type": np.dtype(out),
        "out_sharding": out_sharding,
        "kernel": kernel,
        "batch_invariant": bool(batch_invariant),
        "strict": strict,
    }


def target(out_sharding: Any) -> NamedSharding | None:
    """``out_sharding`` as the primitives take it; None if shardings are no part of types."""
    if out_sharding is None:
        return None
    if isinstance(out_sharding, NamedSharding):
        mesh, spec = out_sharding.mesh.abstract_mesh, out_sharding.spec  # a type's sharding is of an abstract mesh
    else:
        mesh, spec = jax.sharding.get_abstract_mesh(), out_sharding
    return NamedSharding(mesh, spec) if explicit_axes(mesh) else None
