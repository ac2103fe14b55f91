"""``gated_gemm``: the pair of products of a gated layer, ``activation(x w_gate) * (x w_up)``.

On Hopper it is one launch, which writes the result and nothing else, unless two products are expected to take less
time. Elsewhere, in programs on several devices, and for derivatives, it is composed of two ordinary products, which JAX
can transform in every way.

Operands are x (..., k), w_gate (k, n), w_up (k, n), of one type, or each of a type of 8-bit floats. The one parameter
besides those of every kind is ``activation``, a name or None.
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

from jaxgemm import dtypes
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
            scales, which integers need, the pair is two products, each scaled in its launch.
        gate_scale, up_scale: the same for the weights, as ``b_scale``: of shape () or (1, n).
        out_dtype: type of the result; by default that of the promoted operands, and float32 for 8-bit floats, which
            are multiplied without promotion, and with scales. Sums, the activation and the multiplication are in the
            accumulator's type, and the result is rounded once. Products that XLA computes, that are divided over
            several devices, or that have scales are rounded to the result's type before they are multiplied, as in
            jnp, unless that type has 8 bits.
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
    operands = {"x": x, "w_gate": w_gate, "w_up": w_up}
    arrays = {name: as_array(f"gated_gemm: {name}", value) for name, value in operands.items()}
    scales = {"x_scale": x_scale, "gate_scale": gate_scale, "up_scale": up_scale}
    if any(scale is not None for scale in scales.values()):
        how = {"precision": precision, "kernel": kernel, "batch_invariant": batch_invariant}
        return _scaled_pair([*arrays.values()], scales, activation, scaled_result(out_dtype, "gated_gemm"), how)
    (a, gate, up), weak = _unscaled(arrays)
    _check_shapes(a, gate, up)
    out = float_result("gated_gemm: out_dtype", out_dtype, dtypes.default_result(a.dtype))
    result: jax.Array = gated_p.bind(
        *vary_alike(a, gate, up),
        activation=activation,
        preferred_element_type=out,
        precision=prec.canonical(precision),
        kernel=kernel,
        batch_invariant=bool(batch_invariant),
    )
    return weakly_typed(result) if weak and out_dtype is None else result


def _unscaled(arrays: dict[str, jax.Array]) -> tuple[list[jax.Array], bool]:
    """The operands in one type, or each in its own of 8-bit floats, and whether jnp's product is weakly typed."""
    if all(dtypes.is_8bit(x.dtype) and jnp.issubdtype(x.dtype, jnp.floating) for x in arrays.values()):
        return [*arrays.values()], False
    return float_operands("gated_gemm", "; operands of 8 bits need scales if they are integers", **arrays)


def _check_shapes(x: jax.Array, gate: jax.Array, up: jax.Array) -> None:
    if gate.ndim != 2 or gate.shape != up.shape:
        raise ValueError(f"gated_gemm: w_gate and w_up must be (k, n) alike, got {gate.shape} and {up.shape}")
    if x.ndim == 0 or x.shape[-1] != gate.shape[0]:
        raise ValueError(f"gated_gemm: inner dimensions differ: x has shape {x.shape}, the weights {gate.shape}")


def _scaled_pair(
    arrays: Sequence[jax.Array],
    scales: dict[str, ArrayLike | None],
    activation: str | None,
    out: np.dtype,
    how: dict[str, Any],
) -> jax.Array:
    """The pair of 8 bits, as two products, each scaled and rounded."""
    _check_shapes(*arrays)
    x, *weights = arrays
    shape = (*x.shape[:-1], weights[0].shape[1])
    given = {name: as_array(f"gated_gemm: {name}", s) for name, s in scales.items() if s is not None}
    if not all(dtypes.is_8bit(array.dtype) for array in arrays):
        types = ", ".join(array.dtype.name for array in arrays)
        raise TypeError(f"gated_gemm: {next(iter(given))} is for operands of 8 bits, got {types}")
    for name, scale in given.items():
        _check_scale(name, scale, shape)
    of_x = given.get("x_scale")
    if of_x is not None and of_x.ndim == 1:
        of_x = of_x[None]
    x, line = (x, shape) if x.ndim > 1 else (x[None], (1, *shape))
    kept = np.dtype(np.float32) if dtypes.is_8bit(out) else out
    results = []
    for w, name, function in zip(weights, ("gate_scale", "up_scale"), (activation, None), strict=True):
        of_w = given.get(name)
        one = jnp.float32(1) if of_x is None and of_w is None else of_x  # another operand has a scale
        called = "gated_gemm", "x_scale", name
        found = scales_of({"a_scale": one, "b_scale": of_w}, (x.dtype, w.dtype), x.shape[-1], line, called)
        epilogue = Epilogue(activation=function)
        results.append(bind_scaled(x, w, found, None, (False, False), kept, epilogue, options=(), **how))
    result = (results[0] * results[1]).astype(out)
    return result if result.shape == shape else jnp.reshape(result, shape)


def _check_scale(name: str, scale: jax.Array, result: Sequence[int]) -> None:
    """ValueError for a scale that is neither one number nor one for each row of x, or column of both weights."""
    *rows, n = result
    of_x = name == "x_scale"
    limits = (*rows, 1) if of_x else (*[1] * len(rows), n)
    limits = (*[1] * (2 - len(limits)), *limits)  # a vector is one row
    fits = all(k in (1, most) for k, most in zip(scale.shape[::-1], limits[::-1], strict=False))
    if scale.ndim and not (fits and 2 - of_x <= scale.ndim <= len(limits)):
        wanted = (*rows, 1) if of_x else (1, n)
        raise ValueError(
            f"gated_gemm: {name} must have shape () or {wanted}, for a result of {tuple(result)}; got {scale.shape}"
        )


def _dims(x: Any) -> Any:
    return ((x.ndim - 1,), (0,)), ((), ())


def _abstract(x: Any, gate: Any, _up: Any, **params: Any) -> Any:
    return dense.DENSE.abstract(x, gate, dimension_numbers=_dims(x), out_sharding=None, **params)


def _product(x: jax.Array, w: jax.Array, *, dtype: np.dtype, params: Params) -> jax.Array:
    """One product of the pair, with a result of type ``dtype``."""
    how = {name: params[name] for name in ("kernel", "batch_invariant")}
    return dense.bind(x, w, (), _dims(x), params["precision"], dtype, Epilogue(), **how)


def _kept(x: jax.Array, gate: jax.Array, params: Params, *, narrow: bool) -> np.dtype:
    """The type of both products of a composed pair, in which the rest is computed."""
    out: np.dtype = params["preferred_element_type"]
    if dtypes.is_8bit(out):
        return dtypes.summed(x.dtype, gate.dtype, out)
    return out if narrow else composed_type(Epilogue(), (x, gate), out, by_xla=may_be_xlas(params))


def compose(x: jax.Array, gate: jax.Array, up: jax.Array, *, narrow: bool = False, **params: Any) -> jax.Array:
    """The same result, composed of two products.

    With ``narrow`` both products are in the result's type, whoever computes them; see ``Kind.narrow``.
    """
    dot = partial(_product, x, dtype=_kept(x, gate, params, narrow=narrow), params=params)
    return gated(params["activation"], dot(gate), dot(up), params["preferred_element_type"])


def _batch(_: Any, args: Any, bdims: Any, params: Params) -> tuple[Any, int] | None:
    if bdims[1:] != (None, None):
        return None
    return gated_p.bind(jnp.moveaxis(args[0], bdims[0], 0), *args[1:], **params), 0


def _taylor(primals: Sequence[jax.Array], series: Sequence[Terms], **params: Any) -> Series:
    kept = _kept(primals[0], primals[1], params, narrow=True)
    x, *weights = zip(primals, series, strict=True)
    dot = partial(_product, dtype=kept, params=params)
    first, second = (series_of(dot, x, w) for w in weights)
    multiply = partial(gated, None, out_dtype=params["preferred_element_type"])
    return series_of(multiply, activated(params["activation"], kept, first), second)


def decide(platform: str, avals: Sequence[Any], params: Params) -> Decision:
    """The kernel that computes both products in one launch, or no kernel if the pair is composed; and why.

    Raises:
        UnsupportedError: the kernel asked for by name has a gated form, which cannot run this pair.
    """
    if unknown := symbolic.choose(avals, params):
        return Decision(unknown)
    if params["batch_invariant"]:
        return Decision(Choice.xlas(rules.INVARIANT, "each of the two products is batch-invariant by itself"))
    if dtypes.is_8bit(avals[0].dtype) and params["kernel"] != "xla":
        return Decision(Choice.xlas(rules.GATED_MISSING, "no kernel has a gated form for operands of 8 bits"))
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
