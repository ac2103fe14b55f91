"""``ragged_gated``: the pair of products of a gated layer, of rows in groups that each have weights of their own."""

from __future__ import annotations

from typing import Any

import jax
from jax.typing import ArrayLike, DTypeLike

from jaxgemm import precision as prec
from jaxgemm.products.arguments import check_activation, float_operands, float_result, weakly_typed
from jaxgemm.ragged import arguments
from jaxgemm.ragged.fused import grouped_fused_p
from jaxgemm.sharding.partition import vary_alike


def ragged_gated(
    lhs: ArrayLike,
    w_gate: ArrayLike,
    w_up: ArrayLike,
    group_sizes: ArrayLike,
    *,
    activation: str | None = "silu",
    precision: prec.Precision = None,
    preferred_element_type: DTypeLike | None = None,
    group_offset: ArrayLike | None = None,
    out_sharding: Any = None,
    kernel: str = "auto",
    batch_invariant: bool = False,
) -> jax.Array:
    """``activation(x @ w_gate[g]) * (x @ w_up[g])`` for each row x of ``lhs``, with g its group.

    What :func:`jaxgemm.gated_gemm` is to a layer, for a mixture of them. Groups are as for :func:`jaxgemm.ragged_dot`:
    what is in one group's rows or weights reaches no other group's result.

    Args:
        lhs: shape (m, k), floating-point, as the weights.
        w_gate, w_up: shape (held, k, n), the weights of ``held`` groups.
        group_sizes: shape (groups,), as for :func:`jaxgemm.ragged_dot`.
        activation: as for :func:`jaxgemm.gemm`; "silu" makes it SwiGLU, "gelu" GEGLU, "sigmoid" GLU.
        precision: as for :func:`jaxgemm.ragged_dot`.
        preferred_element_type: floating-point type of the result; by default that of the promoted operands. Where one
            launch computes both products, the result is rounded once; products that XLA computes are rounded to it
            first, as in jnp.
        group_offset, out_sharding, batch_invariant: as for :func:`jaxgemm.ragged_dot`.
        kernel: as for :func:`jaxgemm.ragged_dot`. Where a kernel that is asked for by name cannot compute both products
            in one launch, it computes each, and jnp the rest.

    Returns:
        Shape (m, n). Rows that have no group, or one whose weights are not held, have zeros.

    Raises:
        TypeError, ValueError, UnsupportedError: as for :func:`jaxgemm.ragged_dot`; TypeError for operands or a result
            that are not floating-point.
    """
    (x, gate, up), weak = float_operands("ragged_gated", lhs=lhs, w_gate=w_gate, w_up=w_up)
    _check_shapes(x, gate, up)
    out = float_result("ragged_gated: preferred_element_type", preferred_element_type, x.dtype)
    where = arguments.where("ragged_gated", group_sizes, group_offset, gate.shape[0])
    check_activation("ragged_gated", activation)
    target = arguments.target(out_sharding)
    params = arguments.parameters(
        precision=precision, out=out, kernel=kernel, out_sharding=target, batch_invariant=batch_invariant
    )
    operands = vary_alike(x, gate, up, *where)
    result: jax.Array = grouped_fused_p.bind(*operands, activation=activation, gated=True, has_bias=False, **params)
    if out_sharding is not None and target is None:
        result = jax.sharding.reshard(result, out_sharding)
    return weakly_typed(result) if weak and preferred_element_type is None else result


def _check_shapes(x: jax.Array, gate: jax.Array, up: jax.Array) -> None:
    if gate.ndim != 3 or gate.shape != up.shape:
        raise ValueError(f"ragged_gated: w_gate and w_up must be (groups, k, n) alike, got {gate.shape} and {up.shape}")
    if x.ndim != 2:
        raise ValueError(
            f"ragged_gated: expected lhs (m, k), got shape {x.shape}; merge axes of rows into one, or map over others "
            "by jax.vmap"
        )
    if x.shape[1] != gate.shape[1]:
        raise ValueError(
            f"ragged_gated: inner dimensions differ: lhs of shape {x.shape} has k = {x.shape[1]}, "
            f"weights of shape {gate.shape} have k = {gate.shape[1]}"
        )
