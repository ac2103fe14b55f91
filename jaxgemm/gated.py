"""``gated_gemm``: the pair of products of a gated layer, ``activation(x w_gate) * (x w_up)``.

On Hopper it is one launch, which writes the result and nothing else, unless two products are expected to take less
time. Everywhere else, in programs on several devices, and for derivatives, it is composed of two ordinary products, so
that JAX can do with it whatever it can do with those.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla
from jax.typing import ArrayLike, DTypeLike

from jaxgemm import api, symbolic
from jaxgemm import precision as prec
from jaxgemm._jax_private import (
    check_for_nans,
    device_count,
    explicit_axes,
    is_partitioned,
    is_partly_manual,
    needs_devices_while_lowering,
)
from jaxgemm.arguments import canonical_dtype, check_activation, gives_way, weakly_typed
from jaxgemm.choice.select import Choice, select_gated
from jaxgemm.epilogue import Epilogue, apply, composed_type
from jaxgemm.kernels import Device, UnsupportedError, device_for, find_kernel
from jaxgemm.partition import vary_alike
from jaxgemm.primitive import Decision, call
from jaxgemm.problem import Matrix, Problem

gated_p = Primitive("jaxgemm_gated")
gated_p.def_impl(partial(xla.apply_primitive, gated_p))
check_for_nans(gated_p)

# Operands are x (..., k), w_gate (k, n), w_up (k, n); parameters:
#   activation                 a name, or None
#   preferred_element_type     of the result
#   precision, kernel          as gemm_p has them


def gated_gemm(
    x: ArrayLike,
    w_gate: ArrayLike,
    w_up: ArrayLike,
    *,
    activation: str | None = "silu",
    out_dtype: DTypeLike | None = None,
    kernel: str = "auto",
) -> jax.Array:
    """``activation(x @ w_gate) * (x @ w_up)``, in one launch where a kernel has that form.

    Args:
        x: shape (..., k).
        w_gate: shape (k, n).
        w_up: shape (k, n).
        activation: as for :func:`jaxgemm.gemm`; "silu" makes it SwiGLU, "gelu" GEGLU, "sigmoid" GLU.
        out_dtype: type of the result; by default that of the promoted operands. Sums, the activation and the
            multiplication are in the accumulator's type, rounded once; but products that XLA computes, or that several
            devices do, are rounded to the result's type first, as in jnp.
        kernel: "auto", "xla", or a name out of :func:`jaxgemm.kernels`. A kernel without a gated form computes the
            two products, and jnp the rest.

    Returns:
        Shape (..., n).

    Raises:
        TypeError, ValueError, UnsupportedError: as for :func:`jaxgemm.gemm`.
    """
    arrays = [jnp.asarray(a) for a in (x, w_gate, w_up)]
    weak = out_dtype is None and all(map(gives_way, arrays))
    dtype = jnp.result_type(*arrays)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise TypeError(f"gated_gemm: expected floating-point operands, got {', '.join(a.dtype.name for a in arrays)}")
    a, gate, up = (v.astype(dtype) for v in arrays)  # without weakness, which composed products lose
    if gate.ndim != 2 or gate.shape != up.shape:
        raise ValueError(f"gated_gemm: w_gate and w_up must be (k, n) alike, got {gate.shape} and {up.shape}")
    if a.ndim == 0 or a.shape[-1] != gate.shape[0]:
        raise ValueError(f"gated_gemm: inner dimensions differ: x has shape {a.shape}, the weights {gate.shape}")
    check_activation("gated_gemm", activation)
    if kernel not in ("auto", "xla"):
        find_kernel(kernel)
    out = np.dtype(dtype) if out_dtype is None else canonical_dtype(out_dtype)
    if not jnp.issubdtype(out, jnp.floating):
        raise TypeError(f"gated_gemm: out_dtype must be a floating-point type, got {out.name}")
    result: jax.Array = gated_p.bind(
        *vary_alike(a, gate, up),
        activation=activation,
        preferred_element_type=out,
        precision=prec.canonical(None),
        kernel=kernel,
    )
    return weakly_typed(result) if weak else result


def _dims(x: Any) -> Any:
    return ((x.ndim - 1,), (0,)), ((), ())


@gated_p.def_effectful_abstract_eval
def _abstract_eval(x: Any, gate: Any, _up: Any, **params: Any) -> Any:
    return lax.dot_general_p.abstract_eval(
        x,
        gate,
        dimension_numbers=_dims(x),
        precision=params["precision"],
        preferred_element_type=params["preferred_element_type"],
        out_sharding=None,
    )


def product(x: jax.Array, w: jax.Array, *, dtype: np.dtype, params: dict[str, Any]) -> jax.Array:
    """One product of the pair, in this type."""
    return api.bind(x, w, (), _dims(x), params["precision"], dtype, Epilogue(), params["kernel"], ())


def compose(x: jax.Array, gate: jax.Array, up: jax.Array, *, narrow: bool = False, **params: Any) -> jax.Array:
    """The same, composed of two products; with ``narrow`` both are in the result's type, whoever computes them.

    Products are narrow where they are kept for a derivative, as they would be in jnp: wider, they would take twice the
    memory, and make the products of the backward pass as wide. So are those of which several devices may add up parts.
    """
    out = params["preferred_element_type"]
    by_xla = params["kernel"] in ("auto", "xla")
    dtype = out if narrow else composed_type(Epilogue(), (x, gate), out, by_xla=by_xla)
    dot = partial(product, x, dtype=dtype, params=params)
    activation = Epilogue(activation=params["activation"])
    return (apply(activation, dot(gate), None, None, dtype) * dot(up)).astype(out)


def _batch_rule(args: Any, bdims: Any, **params: Any) -> tuple[Any, int]:
    x_bdim, *weights = bdims
    args = vary_alike(*args)  # what is mapped may vary along the axis of spmd_axis_name
    if weights == [None, None]:
        return gated_p.bind(jnp.moveaxis(args[0], x_bdim, 0), *args[1:], **params), 0
    return jax.vmap(partial(compose, **params), in_axes=tuple(bdims))(*args), 0


batching.primitive_batchers[gated_p] = _batch_rule


def _jvp_rule(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    moving = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]

    def function(*given: jax.Array) -> jax.Array:
        operands = list(primals)
        for i, value in zip(moving, given, strict=True):
            operands[i] = value
        return compose(*operands, narrow=True, **params)

    return jax.jvp(function, [primals[i] for i in moving], [tangents[i] for i in moving])


ad.primitive_jvps[gated_p] = _jvp_rule


def decide(device: Device, avals: Sequence[Any], params: dict[str, Any]) -> Decision:
    """The kernel that computes both products in one launch, or no kernel where they are composed, and why.

    Raises:
        UnsupportedError: a kernel asked for by name has a gated form that cannot run this.
    """
    if unknown := symbolic.choose(avals, kernel=params["kernel"]):
        return Decision(unknown, None, None)
    x, gate = avals[:2]
    problem = _problem(x, gate, params)
    choice = select_gated(problem, device, precision=params["precision"], kernel=params["kernel"])
    return Decision(choice, problem, None)


def _problem(x: Any, gate: Any, params: dict[str, Any]) -> Problem:
    k, n = gate.shape
    names = (np.dtype(x.dtype).name,) * 2 + (np.dtype(params["preferred_element_type"]).name,)
    return Problem(
        m=prod(x.shape[:-1]),
        n=n,
        k=k,
        batch=(1, 1),
        a=Matrix(False, max(k, 1), (0, 0)),
        b=Matrix(False, max(n, 1), (0, 0)),
        dtypes=names,
        epilogue=Epilogue(activation=params["activation"]),
        gated=True,
    )


def launch(choice: Choice, x: jax.Array, gate: jax.Array, up: jax.Array, **params: Any) -> jax.Array:
    """Both products by one call of a kernel that has a gated form."""
    return call(choice, _problem(x, gate, params), (*x.shape[:-1], gate.shape[1]), (x, gate, up))


def _rule(platform: str, ctx: Any, *operands: Any, **params: Any) -> Any:
    function: Any = partial(compose, narrow=device_count(ctx) > 1)
    # As for single products, "auto" leaves those of programs on several devices to XLA.
    if params["kernel"] != "auto" or device_count(ctx) == 1:
        choice = decide(device_for(platform), ctx.avals_in, params).choice
        divided = is_partitioned(ctx) or is_partly_manual(ctx) or explicit_axes(ctx.avals_out[0].sharding.mesh)
        if choice.kernel is not None and not divided:
            function = partial(launch, choice)
        elif choice.kernel is not None and params["kernel"] != "auto":
            raise UnsupportedError(
                f"kernel '{params['kernel']}': a gated product is one launch on one device, and this program is "
                "divided over several; map it with shard_map over all of the mesh's axes"
            )
    return mlir.lower_fun(partial(function, **params), multiple_results=False)(ctx, *operands)


for _platform in ("cuda", "cpu"):
    mlir.register_lowering(gated_p, partial(_rule, _platform), platform=_platform)
mlir.register_lowering(gated_p, partial(_rule, "other"))
needs_devices_while_lowering(gated_p)
