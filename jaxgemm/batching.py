"""Products under ``vmap``: the mapped axis is a batch axis of both operands, or a free axis of the one that has it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters import batching
from jax.sharding import NamedSharding, PartitionSpec

from jaxgemm._jax_private import mapped_mesh_axes
from jaxgemm.epilogue import Epilogue, apply, composed_type
from jaxgemm.partition import vary_alike
from jaxgemm.primitive import free_axes, gemm_p


def _batched(
    axis_data: Any, params: dict[str, Any], lhs: Any, rhs: Any, lhs_bdim: int | None, rhs_bdim: int | None
) -> tuple[dict[str, Any], int]:
    """Parameters with the new axis, and where that axis comes out."""

    def bump(axes: tuple[int, ...], at: int | None) -> tuple[int, ...]:
        return axes if at is None else tuple(i + (i >= at) for i in axes)

    (lc, rc), (lb, rb) = params["dimension_numbers"]
    lc, lb, rc, rb = bump(lc, lhs_bdim), bump(lb, lhs_bdim), bump(rc, rhs_bdim), bump(rb, rhs_bdim)
    if lhs_bdim is not None and rhs_bdim is not None:
        lb, rb, out_bdim = (lhs_bdim, *lb), (rhs_bdim, *rb), 0
    elif lhs_bdim is not None:  # mapped on one side: a free axis there, so that the other operand is read once
        out_bdim = len(lb) + free_axes(np.ndim(lhs), lc, lb).index(lhs_bdim)
    else:
        assert rhs_bdim is not None
        out_bdim = np.ndim(lhs) - len(lc) + free_axes(np.ndim(rhs), rc, rb).index(rhs_bdim)
    out_sharding = params["out_sharding"]
    if out_sharding is not None:
        spec, rank = out_sharding.spec, np.ndim(lhs) + np.ndim(rhs) - 2 * len(lc) - len(lb)
        axes = [*spec.partitions, *[None] * (rank - 1 - len(spec.partitions))]  # a spec may leave the last axes out
        axes.insert(out_bdim, mapped_mesh_axes(axis_data))
        batched = PartitionSpec(*axes, unreduced=spec.unreduced, reduced=spec.reduced)
        out_sharding = NamedSharding(out_sharding.mesh, batched)
    return dict(params, dimension_numbers=((lc, rc), (lb, rb)), out_sharding=out_sharding), out_bdim


def _batch_rule(axis_data: Any, args: Any, bdims: Any, **params: Any) -> tuple[Any, int | None]:
    if all(d is None for d in bdims):
        return gemm_p.bind(*args, **params), None
    lhs, rhs, *extra = args = vary_alike(*args)  # what is mapped may vary along the axis of spmd_axis_name
    lhs_bdim, rhs_bdim, *extra_bdims = bdims
    epilogue: Epilogue = params["epilogue"]
    if epilogue.is_scaling:
        params, out_bdim = _batched(axis_data, params, lhs, rhs, lhs_bdim, rhs_bdim)
        return gemm_p.bind(lhs, rhs, **params), out_bdim
    # The epilogue stays fused where the mapped axis is one of rows, or a batch, that share one bias. Elsewhere it is
    # composed in jnp, with the new axis first everywhere, so that c and bias line up with the result.
    out_dtype = np.dtype(params["preferred_element_type"])
    size = next(x.shape[d] for x, d in zip(args, bdims, strict=True) if d is not None)
    by_xla = params["kernel"] in ("auto", "xla") and not params["batch_invariant"]
    between = composed_type(epilogue, args, out_dtype, by_xla=by_xla)
    product = dict(params, epilogue=epilogue.scaling(), preferred_element_type=between)
    c, bias = epilogue.split(tuple(extra))
    c_bdim, bias_bdim = epilogue.split(tuple(extra_bdims))
    if lhs_bdim is None and rhs_bdim is None:
        z, z_bdim = gemm_p.bind(lhs, rhs, **product), None
    elif bias_bdim is None and (lhs_bdim is not None):
        params, out_bdim = _batched(axis_data, params, lhs, rhs, lhs_bdim, rhs_bdim)
        if c is not None:
            c = _at_axis(c, c_bdim, out_bdim, size)
        operands = [x for x in (c, bias) if x is not None]
        return gemm_p.bind(lhs, rhs, *operands, **params), out_bdim
    else:
        z, z_bdim = _batch_rule(axis_data, (lhs, rhs), (lhs_bdim, rhs_bdim), **product)
    z = z[None] if z_bdim is None else jnp.moveaxis(z, z_bdim, 0)
    if c is not None:
        c = c[None] if c_bdim is None else jnp.moveaxis(c, c_bdim, 0)
    if bias is not None and bias_bdim is not None:
        bias = jnp.moveaxis(bias, bias_bdim, 0)
        bias = bias.reshape(bias.shape[0], *(1,) * (z.ndim - 2), bias.shape[1])
    return apply(epilogue.after_scaling(), z, c, bias, out_dtype), 0


def _at_axis(x: jax.Array, bdim: int | None, axis: int, size: int) -> jax.Array:
    """``x`` with its batch axis, or a new one that repeats it, at ``axis``."""
    if bdim is not None:
        return jnp.moveaxis(x, bdim, axis)
    shape = (*x.shape[:axis], size, *x.shape[axis:])
    return jnp.broadcast_to(jnp.expand_dims(x, axis), shape)


batching.fancy_primitive_batchers[gemm_p] = _batch_rule  # rules of this table are given the axis, and so its sharding
