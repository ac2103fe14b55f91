"""Products of two matrices of 8 bits whose sums are scaled: ``activation(alpha * (a b) * a_scale * b_scale + bias)``.

On Hopper it is one launch of a kernel. Elsewhere, in programs on several devices, mapped, and for derivatives, it is
composed of an ordinary product and jnp code, which JAX can transform in every way.

Operands are a (m, k) and b (k, n), each stored transposed if ``transposed`` says so; then the scales, as ``scales``
says: 0 (none), 1 (of shape ()) or 2 (of shape (m, 1) or (1, n)); then the bias, if ``epilogue`` has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxgemm import dtypes
from jaxgemm import precision as prec
from jaxgemm.choice import rules
from jaxgemm.choice.resolve import Choice, resolve
from jaxgemm.choice.select import in_one_launch
from jaxgemm.epilogue import Epilogue, apply
from jaxgemm.kernels import Kernel, configuration, device_for
from jaxgemm.problem import Matrix, Problem
from jaxgemm.products import dense, report, symbolic
from jaxgemm.products.arguments import check_kernel
from jaxgemm.products.call import call
from jaxgemm.products.kind import Decision, Kind, Params
from jaxgemm.products.register import register
from jaxgemm.products.scales import scaled
from jaxgemm.sharding.partition import vary_alike


def _dims(params: Params) -> Any:
    a, b = params["transposed"]
    return (((0 if a else 1,), (1 if b else 0,)), ((), ()))


def _abstract(a: Any, b: Any, *_: Any, **params: Any) -> Any:
    return dense.DENSE.abstract(a, b, dimension_numbers=_dims(params), out_sharding=None, **params)


def compose(a: jax.Array, b: jax.Array, *rest: jax.Array, **params: Any) -> jax.Array:
    """The same result by an ordinary product, scaled in jnp."""
    how = {name: params[name] for name in ("kernel", "options", "batch_invariant")}
    sums = dtypes.accumulator(np.dtype(a.dtype))
    z = dense.bind(a, b, (), _dims(params), params["precision"], sums, Epilogue(), **how)
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
    (m, k), n = (a.shape[::-1] if over_a else a.shape), b.shape[0 if over_b else 1]
    types = (np.dtype(x).name for x in (a.dtype, b.dtype, params["preferred_element_type"]))
    return Problem(
        m=m,
        n=n,
        k=k,
        batch=(1, 1),
        a=Matrix(over_a, max(a.shape[1], 1), (0, 0)),
        b=Matrix(over_b, max(b.shape[1], 1), (0, 0)),
        dtypes=tuple(types),
        epilogue=params["epilogue"],
        scales=params["scales"],
    )


def launch(decision: Decision, a: jax.Array, b: jax.Array, *rest: jax.Array, **params: Any) -> jax.Array:
    """The result by one call of a kernel that has a form for scales."""
    problem = decision.problem
    assert problem is not None
    count = sum(map(bool, params["scales"]))
    operands = [a, b, *rest[count:], *rest[:count]]  # a kernel's scales come last
    return call(decision.choice, problem, (problem.m, problem.n), operands)


def is_matrix_product(a: Any, b: Any, b_scale: Any | None, transposed: tuple[bool, bool]) -> bool:
    """Whether a b is one matrix product: of two matrices, or of the rows of several matrices a, which may have scales
    of their own, and one matrix b with one set of scales.
    """
    shared = b_scale is None or all(n == 1 for n in b_scale.shape[:-2])
    return shared and b.ndim == 2 and (a.ndim == 2 or not transposed[0])


def _is_one(x: jax.Array) -> bool:
    """Whether the array is one number. A symbolic extent is not 1."""
    return all(n == 1 for n in x.shape)


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
    """The product (m, n) of checked operands, for all rows of a."""
    check_kernel(how["kernel"], how["batch_invariant"])
    a_scale, b_scale = scales.get("a_scale"), scales.get("b_scale")
    if a.ndim > 2:
        if a_scale is not None and not _is_one(a_scale):
            a_scale = jnp.broadcast_to(a_scale, (*a.shape[:-1], 1))
        a = jnp.reshape(a, (-1, a.shape[-1]))
    given = ((a_scale, (-1, 1)), (b_scale, (1, -1)))
    held = [None if x is None else jnp.reshape(x, () if _is_one(x) else line) for x, line in given]
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
    refusal=None,
    dimensions=lambda _types, params: _dims(params),
    describe=report.alone,
    describe_composed=lambda products, _decision, **_: products,
)
scaled_p = register(SCALED)
