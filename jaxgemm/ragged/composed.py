"""What follows a grouped product, in jnp: where no kernel does it together with the product, and for derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from jaxgemm._jax_private import explicit_axes
from jaxgemm.epilogue import Epilogue, apply
from jaxgemm.ragged import arguments, by_xla, groups
from jaxgemm.ragged.form import Form
from jaxgemm.ragged.product import grouped_p
from jaxgemm.sharding.partition import vary_alike


def finish(
    products: Sequence[jax.Array],
    where: Sequence[jax.Array],
    bias: jax.Array | None,
    *,
    held: int,
    activation: str | None,
    out: np.dtype,
) -> jax.Array:
    """The result of products in which rows have their group's weights.

    Args:
        products: the product, or both of a gated pair: (m, n), with one axis more, the first, where there is a batch.
        where: sizes and offset, as :func:`jaxgemm.ragged.groups.owner` takes them, or these of each of a batch.
        bias: (held, n), or that of each of a batch; None: there is none, as of a gated pair.
        held: of how many groups there are weights.
        activation: a name, or None.
        out: type of the result.
    """
    z, *up = products
    after = Epilogue(has_bias=bias is not None, activation=activation)
    if up:  # rows that have no group are zeros times the activation of zero
        return (apply(after, z, None, None, z.dtype) * up[0]).astype(out)

    def of(z: jax.Array, sizes: jax.Array, offset: jax.Array, bias: jax.Array | None) -> jax.Array:
        rows = None if bias is None else of_rows(bias.astype(z.dtype), sizes, offset, _placed(z))
        has = groups.owner(sizes, offset, z.shape[0], held) < held
        # What is left out here is finite: the activation of zeros.
        return jnp.where(has[:, None], apply(after, z, None, rows, out), jnp.zeros((), out))

    return by_xla.over_batch(of, [z, *where, bias], [2, 1, 1, 2])


#: How many rows there are, and how the type of their product says that it is sharded, if it does.
_Rows = tuple[int, NamedSharding | None]


def _placed(z: jax.Array) -> _Rows:
    sharding = jax.typeof(z).sharding
    return z.shape[0], sharding if explicit_axes(sharding.mesh) else None


@partial(jax.custom_jvp, nondiff_argnums=(3,))
def of_rows(bias: jax.Array, sizes: jax.Array, offset: jax.Array, rows: _Rows) -> jax.Array:
    """The bias (held, n) of each row's group; zeros for rows that have none.

    Its derivative is a grouped product, whose transpose adds the rows of each group up in the accumulator's type, in
    one order. That of a gather would be a scatter that adds, in the type of the bias, in any order.
    """
    count, target = rows
    if target is not None:
        bias = jax.sharding.reshard(bias, NamedSharding(target.mesh, PartitionSpec(None, target.spec[1])))
    mine = groups.owner(sizes, offset, count, bias.shape[0])
    # The last row is that of none.
    return jnp.pad(bias, ((0, 1), (0, 0))).at[mine].get(mode="promise_in_bounds", out_sharding=target)


@of_rows.defjvp
def _of_rows_jvp(rows: _Rows, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    bias, *where = primals
    count, target = rows
    ones = jnp.ones((count, 1), bias.dtype)
    if target is not None:
        ones = jax.sharding.reshard(ones, NamedSharding(target.mesh, PartitionSpec(target.spec[0], None)))
    derived = arguments.parameters(
        precision=lax.Precision.HIGHEST, out=bias.dtype, kernel="auto", out_sharding=target, strict=False
    )
    operands = vary_alike(ones, jnp.expand_dims(tangents[0], 1), *where)
    tangent = grouped_p.bind(*operands, form=Form(False, False, bias.shape[0]), **derived)
    return of_rows(*primals, rows), tangent
