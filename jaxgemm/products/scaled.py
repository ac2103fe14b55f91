"""Products of rows and a matrix of 8 bits whose sums are scaled: ``activation(alpha (a b) a_scale b_scale + bias)``.

On Hopper it is one launch of a kernel. Elsewhere, in programs on several devices, and for derivatives, it is composed
of an ordinary product and jnp code, which JAX can transform in every way.

Operands are a (..., m, k) and b (k, n), or (k, ..., m) and (n, k) if ``transposed`` says so; then the scales, as
``scales`` says: 0 (none), 1 (of shape ()) or 2 (of a's rank, with an extent of 1 or as many as there are rows on each
axis but the last, or of shape (1, n)); then the bias, if ``epilogue`` has one. The result is (..., m, n).
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

from jaxgemm import dtypes
from jaxgemm import precision as prec
from jaxgemm._jax_private import explicit_axes
from jaxgemm.choice import rules
from jaxgemm.choice.resolve import Choice, resolve
from jaxgemm.choice.select import in_one_launch
from jaxgemm.epilogue import Epilogue, apply
from jaxgemm.kernels import Kernel, configuration, device_for
from jaxgemm.problem import Matrix, Problem
from jaxgemm.products import dense, report, symbolic
from jaxgemm.products.arguments import check_kernel
from jaxgemm.products.call import call
from jaxgemm.products.derivatives import Series, Terms, activated, of_some, series_of
from jaxgemm.products.kind import Decision, Kind, Params
from jaxgemm.products.register import register
from jaxgemm.products.scales import scaled
from jaxgemm.products.transposes import read_through
from jaxgemm.sharding.partition import vary_alike


def _dims(a: Any, params: Params) -> Any:
    over_a, over_b = params["transposed"]
    return (((0 if over_a else len(a.shape) - 1,), (1 if over_b else 0,)), ((), ()))


def _abstract(*operands: Any, **params: Any) -> Any:
    a, b = operands[:2]
    out, effects = dense.DENSE.abstract(a, b, dimension_numbers=_dims(a, params), out_sharding=None, **params)
    if explicit_axes(out.sharding.mesh):  # the result is sharded as scales and the bias are, too
        out = out.update(sharding=jax.eval_shape(partial(compose, **params), *operands).sharding)
    return out, effects


def compose(a: jax.Array, b: jax.Array, *rest: jax.Array, **params: Any) -> jax.Array:
    """The same result by an ordinary product, scaled in jnp."""
    how = {name: params[name] for name in ("kernel", "options", "batch_invariant")}
    sums = dtypes.accumulator(np.dtype(a.dtype))
    z = dense.bind(a, b, (), _dims(a, params), params["precision"], sums, Epilogue(), **how)
    count = sum(map(bool, params["scales"]))
    epilogue: Epilogue = params["epilogue"]
    z = scaled(z, rest[:count], np.dtype(np.float32))
    return apply(epilogue, z, *epilogue.c_and_bias(rest[count:]), np.dtype(params["preferred_element_type"]))


def decide(platform: str, avals: Sequence[Any], params: Params) -> Decision:
    """The kernel that computes the product in one launch, or no kernel if the product is composed.

    Raises:
        UnsupportedError: the kernel asked for by name has a form for scales, which cannot run this product.
    """
    if unknown := symbolic.choose(avals, params):
        return Decision(unknown)
    if params["batch_invariant"]:
        return Decision(Choice.xlas(rules.INVARIANT, "the sums are batch-invariant, and jnp scales them"))
    out = np.dtype(params["preferred_element_type"])
    if params["epilogue"].has_bias and avals[-1].dtype != out:
        why = f"the bias is of {avals[-1].dtype}, and kernels add one of the result's type, {out}"
        return Decision(Choice.xlas(rules.SCALED_COMPOSED, why))
    problem, device = problem_of(avals[0], avals[1], params), device_for(platform)
    measured = rules.Question(problem, device, params["precision"]).measured

    def weighed(row: Kernel) -> Choice | str:
        config = configuration(row, params["options"])
        found = resolve(row.name, config, problem, device, params["precision"])
        if not isinstance(found, Choice):
            return found
        if params["kernel"] != "auto":
            return found.ours_by(rules.BY_NAME, rules.BY_NAME.says, None)
        if not any(row.name in known.kernels for known in measured):
            return found.left(rules.SCALED_COMPOSED, rules.SCALED_COMPOSED.says)
        return found.ours_by(rules.SCALED_ONE_LAUNCH, rules.SCALED_ONE_LAUNCH.says, None)

    return Decision(in_one_launch("scaled", params["kernel"], device, weighed, rules.SCALED_MISSING), problem)


def problem_of(a: Any, b: Any, params: Params) -> Problem:
    """The problem that one launch computes."""
    over_a, over_b = params["transposed"]
    rows, k, n = _rows(a, params), a.shape[0 if over_a else -1], b.shape[0 if over_b else 1]
    types = (np.dtype(x).name for x in (a.dtype, b.dtype, params["preferred_element_type"]))
    return Problem(
        m=prod(rows),
        n=n,
        k=k,
        batch=(1, 1),
        a=Matrix(over_a, max(prod(rows) if over_a else k, 1), (0, 0)),
        b=Matrix(over_b, max(b.shape[1], 1), (0, 0)),
        dtypes=tuple(types),
        epilogue=params["epilogue"],
        scales=params["scales"],
    )


def _rows(a: Any, params: Params) -> tuple[int, ...]:
    """The extents (..., m) of a."""
    shape: tuple[int, ...] = a.shape
    return shape[1:] if params["transposed"][0] else shape[:-1]


def launch(decision: Decision, a: jax.Array, b: jax.Array, *rest: jax.Array, **params: Any) -> jax.Array:
    """The result by one call of a kernel that has a form for scales."""
    problem = decision.problem
    assert problem is not None
    rows, m = _rows(a, params), problem.m
    count = sum(map(bool, params["scales"]))
    scales = list(rest[:count])
    if params["scales"][0] == 2:
        scales[0] = jnp.reshape(jnp.broadcast_to(scales[0], (*rows, 1)), (m, 1))
    a = jnp.reshape(a, (problem.k, m) if params["transposed"][0] else (m, problem.k))
    out = call(decision.choice, problem, (m, problem.n), [a, b, *rest[count:], *scales])  # a kernel's scales come last
    return jnp.reshape(out, (*rows, problem.n))


def _batch(_: Any, args: Any, axes: Any, params: Params) -> tuple[jax.Array, int] | None:
    """More rows, if nothing but a is mapped, with its scales or without."""
    of_a = params["scales"][0]
    a, b, *rest = args
    if axes[0] is None or any(axis is not None for axis in (axes[1], *axes[3 if of_a else 2 :])):
        return None
    a = jnp.moveaxis(a, axes[0], 0)
    over_a, over_b = params["transposed"]
    if over_a:  # kernels read no batch of transposed matrices as rows
        a = jnp.moveaxis(a, 1, -1)
    if of_a and axes[2] is not None:
        rest[0] = jnp.moveaxis(rest[0], axes[2], 0)
        if of_a == 1:
            rest[0], of_a = lax.expand_dims(rest[0], range(1, a.ndim)), 2
    elif of_a == 2:
        rest[0] = lax.expand_dims(rest[0], [0])
    params = dict(params, transposed=(False, over_b), scales=(of_a, params["scales"][1]))
    return scaled_p.bind(a, b, *rest, **params), 0


def _taylor(primals: Sequence[jax.Array], series: Sequence[Terms], **params: Any) -> Series:
    """Integers have no series but zeros."""
    epilogue, out = params["epilogue"], np.dtype(params["preferred_element_type"])
    kept = out if epilogue.activation is None else np.dtype(np.float32)
    params = dict(params, epilogue=epilogue.linear(), preferred_element_type=kept)
    moving = [i for i, x in enumerate(primals) if jnp.issubdtype(x.dtype, jnp.floating)]
    function = of_some(partial(compose, **params), primals, moving)
    return activated(epilogue.activation, out, series_of(function, *((primals[i], series[i]) for i in moving)))


def _read_through(orders: Sequence[Any], avals: Sequence[Any], params: Params) -> tuple[list[bool], list[Any], Params]:
    """Transpositions of b; of a, if then k is the first axis or the last, so that the others are still rows."""
    of_a, dims = orders[0], _dims(avals[0], params)
    if of_a is not None and of_a[dims[0][0][0]] not in (0, len(of_a) - 1):
        of_a = None
    through, types, dims = read_through((of_a, orders[1]), avals[:2], dims)
    transposed = dims[0][0][0] == 0, dims[0][1][0] == 1
    return [*through, *[False] * (len(avals) - 2)], [*types, *avals[2:]], dict(params, transposed=transposed)


def is_matrix_product(a: Any, b: Any, b_scale: Any | None, transposed: tuple[bool, bool]) -> bool:
    """Whether a b is one matrix product: of two matrices, or of the rows of several matrices a, which may have scales
    of their own, and one matrix b with one set of scales. A batch of one matrix is a matrix.
    """

    def is_one(x: Any) -> bool:
        return x is None or all(n == 1 for n in x.shape[:-2])

    return is_one(b) and is_one(b_scale) and (is_one(a) or not transposed[0])


def _of_rank(x: jax.Array, rank: int) -> jax.Array:
    """The array without first axes, of extent 1, that it has too many. A reshape of sharded axes may be refused."""
    return lax.squeeze(x, range(x.ndim - rank)) if x.ndim > rank else x


def _scale(x: jax.Array | None, rank: int) -> jax.Array | None:
    """The scale, of this rank, or of rank 0 if it is one number. A symbolic extent is not 1."""
    return None if x is None else _of_rank(x, 0 if all(n == 1 for n in x.shape) else rank)


def bind_scaled(
    a: jax.Array,
    b: jax.Array,
    scales: dict[str, jax.Array],
    bias: jax.Array | None,
    transposed: tuple[bool, bool],
    out: np.dtype,
    epilogue: Epilogue,
    **how: Any,
) -> jax.Array:
    """The product (..., m, n) of checked operands of which :func:`is_matrix_product` holds.

    a is (..., m, k). If it is transposed, it may have more axes of extent 1 than the result.
    """
    check_kernel(how["kernel"], how["batch_invariant"])
    a, b = _of_rank(a, 2) if transposed[0] else a, _of_rank(b, 2)
    held = _scale(scales.get("a_scale"), a.ndim), _scale(scales.get("b_scale"), 2)
    if bias is not None and out == np.float32:  # what follows the sums is in float32 everywhere
        bias = lax.convert_element_type(bias, out)
    operands = [a, b, *(x for x in (*held, bias) if x is not None)]
    result: jax.Array = scaled_p.bind(
        *vary_alike(*operands),
        transposed=tuple(map(bool, transposed)),
        scales=tuple(0 if x is None else 1 if x.ndim == 0 else 2 for x in held),
        epilogue=epilogue,
        preferred_element_type=out,
        precision=prec.canonical(how["precision"]),
        kernel=how["kernel"],
        options=how["options"],
        batch_invariant=bool(how["batch_invariant"]),
    )
    return result


SCALED = Kind(
    name="jaxgemm_scaled",
    abstract=_abstract,
    decide=decide,
    launch=launch,
    compose=compose,
    narrow=compose,
    taylor=_taylor,
    batch=_batch,
    read_through=_read_through,
    refusal=None,
    dimensions=lambda types, params: _dims(types[0], params),
    describe=report.alone,
    describe_composed=lambda products, decision, **_: report.scaled_in_jnp(products, decision.choice),
)
scaled_p = register(SCALED)
