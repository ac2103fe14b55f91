"""``grouped_gemm``: products of different shapes and one type, a result each, in as few launches as parameters hold.

On Hopper 16-bit products share a launch. Elsewhere, and in programs on several devices, each is an ordinary product.
The primitive's products are all ``a b``, all ``a b^T`` or all ``a^T b``. The derivatives of each form have one of the
three forms again, so that backward passes share launches as well.

Operands are a_0, a_1, ..., then b_0, b_1, ..., and there is a result for each pair. Parameters, besides those of every
kind but ``batch_invariant``:

    transposed   whether all a are (k, m), and all b (n, k)
    options      (name, value) pairs of a kernel's options
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike, DTypeLike

from jaxgemm import dtypes, wire
from jaxgemm import precision as prec
from jaxgemm._runtime import ffi
from jaxgemm.choice import rules
from jaxgemm.choice.resolve import MAX_WORKSPACE, Choice, computed
from jaxgemm.choice.select import in_one_launch
from jaxgemm.epilogue import Epilogue
from jaxgemm.kernels import Device, Kernel, configuration, device_for
from jaxgemm.problem import Matrix, Problem
from jaxgemm.products import dense, report, symbolic
from jaxgemm.products.arguments import asked_dtype, check_kernel, for_cotangent, option_pairs, promoted, weakly_typed
from jaxgemm.products.call import call_list
from jaxgemm.products.kind import Decision, Kind, Linear, Params
from jaxgemm.products.register import register
from jaxgemm.products.transposes import read_through_all
from jaxgemm.sharding.partition import vary_alike


def grouped_gemm(
    a: Iterable[ArrayLike],
    b: Iterable[ArrayLike],
    *,
    precision: prec.Precision = None,
    preferred_element_type: DTypeLike | None = None,
    kernel: str = "auto",
    **kernel_options: Any,
) -> list[jax.Array]:
    """``[x @ y for x, y in zip(a, b)]``, the products of one type, in as few launches as possible.

    Args:
        a: arrays of shapes (m_i, k_i), any number of them, each of a shape of its own.
        b: as many arrays, of shapes (k_i, n_i). All arrays are promoted to one type, as jnp would add them up.
        precision: as ``jnp.matmul`` takes it.
        preferred_element_type: type of the results; by default that of the promoted operands.
        kernel: "auto", "xla", or a name out of :func:`jaxgemm.kernels`. A kernel without a form for many products
            computes one after the other, as every kernel does in a program that XLA divides over several devices.
        **kernel_options: options of a kernel by name, as for :func:`jaxgemm.gemm`.

    Returns:
        Arrays of shapes (m_i, n_i), which are zeros if k_i is 0.

    Raises:
        TypeError: an operand is no array of numbers or booleans.
        ValueError: ``a`` and ``b`` have not as many arrays, an array has not two axes, inner dimensions differ, or a
            name is wrong.
        UnsupportedError: a kernel asked for by name cannot run the products. Raised while the program is lowered.
    """
    given_a, given_b = list(a), list(b)
    if len(given_a) != len(given_b):
        raise ValueError(f"grouped_gemm: got {len(given_a)} arrays as a and {len(given_b)} as b")
    check_kernel(kernel)
    options = option_pairs(kernel, kernel_options, "grouped_gemm")
    if not given_a:
        return []
    arrays, weak = promoted("grouped_gemm", [*given_a, *given_b])
    xs, ys = _halves(arrays)
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if x.ndim != 2 or y.ndim != 2:
            raise ValueError(f"grouped_gemm: product {i} has operands of shapes {x.shape} and {y.shape}, not matrices")
        if x.shape[1] != y.shape[0]:
            raise ValueError(f"grouped_gemm: inner dimensions differ in product {i}, of shapes {x.shape} and {y.shape}")
    out = asked_dtype(preferred_element_type, xs[0].dtype)
    results = _bind(
        [vary_alike(x, y) for x, y in zip(xs, ys, strict=True)],
        transposed=(False, False),
        precision=prec.canonical(precision),
        preferred_element_type=np.dtype(out),
        kernel=kernel,
        options=options,
        strict=True,
    )
    return [weakly_typed(z) for z in results] if weak and preferred_element_type is None else results


def _bind(pairs: Sequence[Sequence[Any]], **params: Any) -> list[jax.Array]:
    """The products of these pairs of operands."""
    if not pairs:
        return []
    xs, ys = zip(*pairs, strict=True)
    return list(many_p.bind(*xs, *ys, **params))


def _halves(operands: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """All a, and all b."""
    count = len(operands) // 2
    return operands[:count], operands[count:]


def _pairs(operands: Sequence[Any]) -> list[tuple[Any, Any]]:
    """The operands of each product."""
    return list(zip(*_halves(operands), strict=True))


def _dims(transposed: tuple[bool, bool]) -> Any:
    return ((0 if transposed[0] else 1,), (1 if transposed[1] else 0,)), ((), ())


def _of_each(params: Params) -> Params:
    """The parameters of one of the products as a dense one."""
    own = {name: value for name, value in params.items() if name != "transposed"}
    return own | {
        "dimension_numbers": _dims(params["transposed"]),
        "out_sharding": None,
        "epilogue": Epilogue(),
        "batch_invariant": False,
    }


def _abstract(*operands: Any, **params: Any) -> Any:
    each = _of_each(params)
    outs, effects = zip(*(dense.DENSE.abstract(x, y, **each) for x, y in _pairs(operands)), strict=True)
    return list(outs), set().union(*effects)


# --- Transformations ------------------------------------------------------------------------------------------

#: (whether a and b are transposed, 0 for the cotangent of a or 1 for that of b) -> the cotangent, a product of ct and
#: the other operand: whether ct is the first factor, and whether the first and the second factor are transposed.
_COTANGENTS: dict[tuple[tuple[bool, bool], int], tuple[bool, tuple[bool, bool]]] = {
    ((False, False), 0): (True, (False, True)),  # d = a b: da = ct b^T
    ((False, False), 1): (False, (True, False)),  # db = a^T ct
    ((False, True), 0): (True, (False, False)),  # d = a b^T: da = ct b
    ((False, True), 1): (True, (True, False)),  # db = ct^T a
    ((True, False), 0): (False, (False, True)),  # d = a^T b: da = b ct^T
    ((True, False), 1): (False, (False, False)),  # db = a ct
}


def _cotangents(side: int, terms: list[tuple[Any, Any, Any]], _: Any, params: Params) -> list[Any]:
    ct_first, transposed = _COTANGENTS[params["transposed"], side]
    both = [for_cotangent(ct, known) for ct, known, _ in terms]
    wanted = np.dtype(terms[0][2].aval.dtype)
    kept = dtypes.of_cotangent(wanted, params["preferred_element_type"])
    derived = dict(params, transposed=transposed, preferred_element_type=kept, strict=False)
    found = _bind([pair if ct_first else pair[::-1] for pair in both], **derived)
    return [lax.convert_element_type(z, wanted) for z in found]


def compose(*operands: jax.Array, **params: Any) -> list[jax.Array]:
    """The same results, each by a product of its own."""
    return [_product(params, x, y) for x, y in _pairs(operands)]


def _product(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    out: jax.Array = dense.gemm_p.bind(*vary_alike(x, y), **_of_each(params))
    return out


def _batch(_: Any, args: Any, bdims: Any, params: Params) -> tuple[list[Any], list[int | None]]:
    """Each mapped product becomes an ordinary one; the others stay together."""
    pairs, axes = _pairs(args), _pairs(bdims)
    kept = [i for i, axis in enumerate(axes) if axis == (None, None)]
    outs = dict(zip(kept, _bind([pairs[i] for i in kept], **params), strict=True))
    for i, (pair, axis) in enumerate(zip(pairs, axes, strict=True)):
        if i not in outs:
            outs[i] = jax.vmap(partial(_product, params), in_axes=axis)(*pair)
    return [outs[i] for i in range(len(pairs))], [None if axis == (None, None) else 0 for axis in axes]


# --- One device -----------------------------------------------------------------------------------------------


def problems(operands: Sequence[Any], params: Params) -> list[Problem]:
    """The problem of each product. Operands are anything with shapes and types."""
    ta, tb = params["transposed"]
    out = np.dtype(params["preferred_element_type"]).name

    def of(x: Any, y: Any) -> Problem:
        (m, k), n = x.shape[::-1] if ta else x.shape, y.shape[0 if tb else 1]
        a, b = (Matrix(t, max(v.shape[1], 1), (0, 0)) for t, v in ((ta, x), (tb, y)))
        names = (np.dtype(x.dtype).name, np.dtype(y.dtype).name, out)
        return Problem(m=m, n=n, k=k, batch=(1, 1), a=a, b=b, dtypes=names, epilogue=Epilogue())

    return [of(x, y) for x, y in _pairs(operands)]


def multiplied(of: Sequence[Problem]) -> list[int]:
    """Which products have anything to multiply; the results of the others are zeros, or empty."""
    return [i for i, p in enumerate(of) if p.m and p.n and p.k]


def decide(platform: str, operands: Sequence[Any], params: Params) -> Decision:
    """The kernel that computes all products in as few launches as it can; no kernel if each is a product by itself.

    Raises:
        UnsupportedError: the kernel asked for by name has a form for many products, which cannot run these.
    """
    kernel, device = params["kernel"], device_for(platform)
    own: list[Problem] = []
    if kernel != "xla":
        if symbolic.extents(operands):
            return Decision(Choice.xlas(rules.SYMBOLIC, "symbolic extents"))
        every = problems(operands, params)
        own = [every[i] for i in multiplied(every)]
        if len(own) < (2 if kernel == "auto" else 1):
            return Decision(Choice.xlas(rules.MANY_FEW))
    resolve = partial(_resolve, params=params, own=own, device=device)
    return Decision(in_one_launch("many", kernel, device, resolve, rules.MANY_MISSING))


def _resolve(row: Kernel, params: Params, own: Sequence[Problem], device: Device) -> Choice | str:
    """The kernel for the products ``own``, none of which is empty, or why it cannot run them."""
    types = own[0].dtypes
    if row.platform != device.platform:
        return f"kernel '{row.name}' runs on {row.platform}, the program is for {device.platform}"
    first = computed(row, own[0], device, params["precision"])
    if isinstance(first, str):
        return first
    if any(name not in dtypes.ELEMENT_TYPES for name in types):
        return f"kernel '{row.name}' has no product {types[0]} x {types[1]} -> {types[2]}"
    config = configuration(row, params["options"])
    attributes = wire.many_attributes(row.name, config, [first, *own[1:]])
    reason: str
    reason, workspace = ffi.check_many(attributes, list(types), device.arch)
    if reason:
        return reason
    if workspace > MAX_WORKSPACE:
        return f"kernel '{row.name}' needs {workspace} bytes of workspace, the limit is {MAX_WORKSPACE}"
    rule = rules.MANY_ONE_LAUNCH if params["kernel"] == "auto" else rules.BY_NAME
    why = f"{rule.says}: {len(own)} products share launches"
    return Choice(row, config, workspace, why, rule=rule.name, contender=row.name, arithmetic=first.arithmetic)


def _launch(decision: Decision, *operands: jax.Array, **params: Any) -> list[jax.Array]:
    every, pairs = problems(operands, params), _pairs(operands)
    own = multiplied(every)
    xs, ys = zip(*(pairs[i] for i in own), strict=True)
    found = dict(zip(own, call_list(decision.choice, [every[i] for i in own], [*xs, *ys]), strict=True))
    out = params["preferred_element_type"]
    return [found[i] if i in found else jnp.zeros((p.m, p.n), out) for i, p in enumerate(every)]


def _read_through(orders: Sequence[Any], types: Sequence[Any], params: Params) -> tuple[list[bool], list[Any], Params]:
    through, types, transposed = read_through_all(orders, types, params["transposed"])
    return through, types, dict(params, transposed=transposed)


def _describe(
    avals: Sequence[Any], params: Params, decision: Decision, limits: Any, types: Sequence[Any], **_: Any
) -> Iterator[report.Product]:
    for problem, pair in zip(problems(types, params), _pairs(avals), strict=True):
        how = f"one of {len(avals) // 2}" if problem.m and problem.n and problem.k else "zeros, without a launch"
        by = replace(decision, problem=problem)
        yield replace(report.of_problem(pair, params, by, limits), many=how)


def _describe_composed(
    products: Iterable[report.Product], decision: Decision, avals: Sequence[Any], **_: Any
) -> Iterator[report.Product]:
    why = f"by itself: {decision.choice.why} ({decision.choice.rule})"
    for pair, product in zip(_pairs(avals), products, strict=True):
        yield replace(product, operands=report.operands_of(pair), many=why)


LISTS = Kind(
    name="jaxgemm_many",
    several=True,
    abstract=_abstract,
    linear=Linear(
        pairs=_pairs,
        bind=lambda pairs, _, params: _bind(pairs, **params),
        derived=lambda params: dict(params, strict=False),
        cotangents=_cotangents,
    ),
    batch=_batch,
    decide=decide,
    launch=_launch,
    compose=compose,
    refusal=None,
    read_through=_read_through,
    dimensions=lambda _avals, _params: (((), ()), ((), ())),
    describe=_describe,
    describe_composed=_describe_composed,
)
many_p = register(LISTS)
