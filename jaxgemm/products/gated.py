"""``gated_gemm``: the pair of products of a gated layer, ``activation(x w_gate) * (x w_up)``.

On Hopper it is one launch, which writes the result and nothing else, unless two products are expected to take less
time. Elsewhere, in programs on several devices, and for derivatives, it is composed of two ordinary products, which JAX
can transform in every way.

Operands are x (..., k), w_gate (k, n), w_up (k, n). The one parameter besides those of every kind is ``activation``, a
name or None.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from jaxgemm import precision as prec
from jaxgemm.choice import rules
from jaxgemm.choice.resolve import Choice
from jaxgemm.choice.select import select_gated
from jaxgemm.epilogue import Epilogue, composed_type, gated
from jaxgemm.kernels import device_for
from jaxgemm.problem import Matrix, Problem
from jaxgemm.products import dense, report, symbolic
from jaxgemm.products.arguments import (
    as_array,
    check_activation,
    check_kernel,
    float_operands,
    float_result,
    weakly_typed,
)
from jaxgemm.products.call import call
from jaxgemm.products.derivatives import Series, Terms, activated, series_of
from jaxgemm.products.kind import Decision, Kind, Params, may_be_xlas
from jaxgemm.products.register import register
from jaxgemm.products.scaled import bind_scaled
from jaxgemm.products.scales import scaled_result, scales_of
from jaxgemm.sharding.partition import vary_alike


def gated_gemm(
    x: ArrayLike,
    w_gate: ArrayLike,
    w_up: ArrayLike,
    *,
    activation: str | None = "silu",
    x_scale: ArrayLike | None = None,
    gate_scale: ArrayLike | None = None,
    up_scale: ArrayLike | None = None,
    out_dtype: DTypeLike | None = None,
    precision: prec.Precision = None,
    kernel: str = "auto",
    batch_invariant: bool = False,
) -> jax.Array:
    """``activation(x @ w_gate) * (x @ w_up)``, in one launch if a kernel has a gated form.

    Args:
        x: shape (..., k).
        w_gate: shape (k, n).
        w_up: shape (k, n).
        activation: as for :func:`jaxgemm.gemm`; "silu" makes it SwiGLU, "gelu" GEGLU, "sigmoid" GLU.
        x_scale: float32, for operands of 8 bits, as ``a_scale`` of :func:`jaxgemm.gemm`: of shape () or (..., 1). With
            scales the pair is two products, each scaled in its launch.
        gate_scale, up_scale: the same for the weights, as ``b_scale``: of shape () or (1, n).
        out_dtype: type of the result; by default that of the promoted operands, float32 with scales. Sums, the
            activation and the multiplication are in the accumulator's type, and the result is rounded once. Products
            that XLA computes, that are divided over several devices, or that have scales are rounded to the result's
            type before they are multiplied, as in jnp.
        precision: of both products, as for :func:`jaxgemm.gemm`.
        kernel: "auto", "xla", or a name out of :func:`jaxgemm.kernels`. A kernel without a gated form computes the
            two products, and jnp the rest.
        batch_invariant: as for :func:`jaxgemm.gemm`. The two products are then computed apart.

    Returns:
        Shape (..., n).

    Raises:
        TypeError, ValueError, UnsupportedError: as for :func:`jaxgemm.gemm`.
    """
    check_activation("gated_gemm", activation)
    check_kernel(kernel, batch_invariant, products="products do")
    if any(scale is not None for scale in (x_scale, gate_scale, up_scale)):
        how = {"precision": precision, "kernel": kernel, "batch_invariant": batch_invariant}
        weights = (w_gate, gate_scale, activation), (w_up, up_scale, None)
        return _scaled_pair(x, x_scale, weights, scaled_result(out_dtype, "gated_gemm"), how)
    (a, gate, up), weak = float_operands(
        "gated_gemm", "; operands of 8 bits need scales", x=x, w_gate=w_gate, w_up=w_up
    )
    _check_shapes(a, gate, up)
    out = float_result("gated_gemm: out_dtype", out_dtype, a.dtype)
    result: jax.Array = gated_p.bind(
        *vary_alike(a, gate, up),
        activation=activation,
        preferred_element_type=out,
        precision=prec.canonical(precision),
        kernel=kernel,
        batch_invariant=bool(batch_invariant),
    )
    return weakly_typed(result) if weak and out_dtype is None else result


def _check_shapes(x: jax.Array, gate: jax.Array, up: jax.Array) -> None:
    if gate.ndim != 2 or gate.shape != up.shape:
        raise ValueError(f"gated_gemm: w_gate and w_up must be (k, n) alike, got {gate.shape} and {up.shape}")
    if x.ndim == 0 or x.shape[-1] != gate.shape[0]:
        raise ValueError(f"gated_gemm: inner dimensions differ: x has shape {x.shape}, the weights {gate.shape}")


def _scaled_pair(
    x: ArrayLike, x_scale: ArrayLike | None, weights: Sequence[Any], out: np.dtype, how: dict[str, Any]
) -> jax.Array:
    """The pair of 8 bits, as two products, each scaled and rounded. ``weights``: (w, scale, activation) of each."""
    a = as_array("gated_gemm: x", x)
    arrays = [as_array(f"gated_gemm: {name}", w) for name, (w, *_) in zip(("w_gate", "w_up"), weights, strict=True)]
    _check_shapes(a, *arrays)
    shape = (*a.shape[:-1], arrays[0].shape[1])
    rows, line = (a, shape) if a.ndim > 1 else (a[None], (1, *shape))
    of_x = as_array("gated_gemm: x_scale", np.float32(1) if x_scale is None else x_scale)
    of_x = of_x[None] if of_x.ndim == 1 else of_x  # of one row
    results = []
    for name, w, (_, scale, activation) in zip(("gate_scale", "up_scale"), arrays, weights, strict=True):
        called = "gated_gemm", "x_scale", name
        scales = scales_of({"a_scale": of_x, "b_scale": scale}, (a.dtype, w.dtype), a.shape[-1], line, called)
        epilogue = Epilogue(activation=activation)
        results.append(bind_scaled(rows, w, scales, None, (False, False), out, epilogue, options=(), **how))
    return jnp.reshape(results[0] * results[1], shape)


def _dims(x: Any) -> Any:
    return ((x.ndim - 1,), (0,)), ((), ())


def _abstract(x: Any, gate: Any, _up: Any, **params: Any) -> Any:
    return dense.DENSE.abstract(x, gate, dimension_numbers=_dims(x), out_sharding=None, **params)


def _product(x: jax.Array, w: jax.Array, *, dtype: np.dtype, params: Params) -> jax.Array:
    """One product of the pair, with a result of type ``dtype``."""
    how = {name: params[name] for name in ("kernel", "batch_invariant")}
    return dense.bind(x, w, (), _dims(x), params["precision"], dtype, Epilogue(), **how)


def compose(x: jax.Array, gate: jax.Array, up: jax.Array, *, narrow: bool = False, **params: Any) -> jax.Array:
    """The same result, composed of two products.

    With ``narrow`` both products are in the result's type, whoever computes them; see ``Kind.narrow``.
    """
    out = params["preferred_element_type"]
    dtype = out if narrow else composed_type(Epilogue(), (x, gate), out, by_xla=may_be_xlas(params))
    dot = partial(_product, x, dtype=dtype, params=params)
    return gated(params["activation"], dot(gate), dot(up), out)


def _batch(_: Any, args: Any, bdims: Any, params: Params) -> tuple[Any, int] | None:
    if bdims[1:] != (None, None):
        return None
    return gated_p.bind(jnp.moveaxis(args[0], bdims[0], 0), *args[1:], **params), 0


def _taylor(primals: Sequence[jax.Array], series: Sequence[Terms], **params: Any) -> Series:
    out = np.dtype(params["preferred_element_type"])
    x, *weights = zip(primals, series, strict=True)
    dot = partial(_product, dtype=out, params=params)
    first, second = (series_of(dot, x, w) for w in weights)
    return series_of(jnp.multiply, activated(params["activation"], out, first), second)


def decide(platform: str, avals: Sequence[Any], params: Params) -> Decision:
    """The kernel that computes both products in one launch, or no kernel if the pair is composed; and why.

    Raises:
        UnsupportedError: the kernel asked for by name has a gated form, which cannot run this pair.
    """
    if unknown := symbolic.choose(avals, params):
        return Decision(unknown)
    if params["batch_invariant"]:
        return Decision(Choice.xlas(rules.INVARIANT, "each of the two products is batch-invariant by itself"))
    problem = problem_of(avals[0], avals[1], params)
    choice = select_gated(problem, device_for(platform), precision=params["precision"], kernel=params["kernel"])
    return Decision(choice, problem)


def problem_of(x: Any, gate: Any, params: Params) -> Problem:
    """The problem that one launch computes."""
    k, n = gate.shape
    return Problem(
        m=prod(x.shape[:-1]),
        n=n,
        k=k,
        batch=(1, 1),
        a=Matrix(False, max(k, 1), (0, 0)),
        b=Matrix(False, max(n, 1), (0, 0)),
        dtypes=(np.dtype(x.dtype).name,) * 2 + (np.dtype(params["preferred_element_type"]).name,),
        epilogue=Epilogue(activation=params["activation"]),
        gated=True,
    )


def launch(decision: Decision, x: jax.Array, gate: jax.Array, up: jax.Array, **_: Any) -> jax.Array:
    """The result by one call of a kernel that has a gated form."""
    assert decision.problem is not None
    return call(decision.choice, decision.problem, (*x.shape[:-1], gate.shape[1]), (x, gate, up))


GATED = Kind(
    name="jaxgemm_gated",
    abstract=_abstract,
    batch=_batch,
    taylor=_taylor,
    decide=decide,
    launch=launch,
    compose=compose,
    narrow=partial(compose, narrow=True),
    refusal=(
        ": a gated product is one launch on one device, and this program is divided over several; map it with "
        "shard_map over all of the mesh's axes"
    ),
    describe=report.alone,
    describe_composed=lambda products, decision, **_: report.pair(products, decision.choice),
)
gated_p = register(GATED)
