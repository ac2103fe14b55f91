"""``grouped_gemm``: products of different shapes and one type, a result each, in as few launches as parameters hold.

On Hopper 16-bit products share a launch. Everywhere else, and in programs on several devices, each is an ordinary
product. The primitive's products are all ``a b``, ``a b^T`` or ``a^T b``, and the derivatives of each of these are of
the same three forms, so that backward passes share launches as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, xla
from jax.typing import ArrayLike, DTypeLike

from jaxgemm import dtypes, symbolic, wire
from jaxgemm import precision as prec
from jaxgemm._jax_private import (
    check_for_nans,
    device_count,
    explicit_axes,
    is_partitioned,
    is_partly_manual,
    needs_devices_while_lowering,
)
from jaxgemm._runtime import MANY_TARGET, ffi
from jaxgemm.arguments import canonical_dtype, of_one_type, option_pairs, promoted, weakly_typed
from jaxgemm.choice import rules
from jaxgemm.choice.select import MAX_WORKSPACE, Choice, computed, configuration
from jaxgemm.epilogue import Epilogue
from jaxgemm.kernels import Device, Kernel, UnsupportedError, device_for, find_kernel, kernels
from jaxgemm.partition import vary_alike
from jaxgemm.primitive import gemm_p, tangent_of
from jaxgemm.problem import Matrix, Problem
from jaxgemm.transposes import lowered_order, read_through_all

many_p = Primitive("jaxgemm_many")
many_p.multiple_results = True
many_p.def_impl(partial(xla.apply_primitive, many_p))
check_for_nans(many_p)

# Operands are a_0, a_1, ..., then b_0, b_1, ..., and there is a result for each pair; parameters:
#   transposed                             whether all a are (k, m), and all b (n, k)
#   precision, preferred_element_type      as dot_general_p has them
#   kernel, options, strict                as gemm_p has them


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
        kernel: "auto", "xla", or a name out of :func:`jaxgemm.kernels`. A kernel that has no form for many products
            computes one after the other, as every kernel does in a program that XLA divides over several devices.
        **kernel_options: options of a kernel by name, as for :func:`jaxgemm.gemm`.

    Returns:
        Arrays of shapes (m_i, n_i). Those of products with k = 0 are zeros.

    Raises:
        TypeError: an operand is no array of numbers or booleans.
        ValueError: there are not as many of ``b`` as of ``a``, an array has not two axes, inner dimensions differ, or a
            name is wrong.
        UnsupportedError: a kernel asked for by name cannot run the products. Raised while the program is lowered.
    """
    given_a, given_b = list(a), list(b)
    if len(given_a) != len(given_b):
        raise ValueError(f"grouped_gemm: got {len(given_a)} arrays as a and {len(given_b)} as b")
    if kernel not in ("auto", "xla"):
        find_kernel(kernel)
    options = option_pairs(kernel, kernel_options, "grouped_gemm")
    if not given_a:
        return []
    arrays, weak = promoted("grouped_gemm", [*given_a, *given_b])
    xs, ys = halves(arrays)
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if x.ndim != 2 or y.ndim != 2:
            raise ValueError(f"grouped_gemm: product {i} has operands of shapes {x.shape} and {y.shape}, not matrices")
        if x.shape[1] != y.shape[0]:
            raise ValueError(f"grouped_gemm: inner dimensions differ in product {i}, of shapes {x.shape} and {y.shape}")
    out = xs[0].dtype if preferred_element_type is None else canonical_dtype(preferred_element_type)
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


def halves(operands: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
    """All a, and all b."""
    count = len(operands) // 2
    return operands[:count], operands[count:]


def _pairs(operands: Sequence[Any]) -> list[tuple[Any, Any]]:
    """The operands of each product."""
    return list(zip(*halves(operands), strict=True))


def _dims(transposed: tuple[bool, bool]) -> Any:
    return ((0 if transposed[0] else 1,), (1 if transposed[1] else 0,)), ((), ())


@many_p.def_effectful_abstract_eval
def _abstract_eval(*operands: Any, **params: Any) -> Any:
    dot = {name: params[name] for name in ("precision", "preferred_element_type")}
    dot |= {"dimension_numbers": _dims(params["transposed"]), "out_sharding": None}
    outs, effects = zip(*(lax.dot_general_p.abstract_eval(x, y, **dot) for x, y in _pairs(operands)), strict=True)
    return list(outs), set().union(*effects)


# --- Transformations ------------------------------------------------------------------------------------------


def _jvp_rule(primals: Any, tangents: Any, **params: Any) -> tuple[Any, Any]:
    outs = many_p.bind(*primals, **params)
    terms: list[list[Any]] = [[] for _ in outs]
    given, moved = _pairs(primals), _pairs(tangents)
    for side in (0, 1):
        moving = [i for i, pair in enumerate(moved) if type(pair[side]) is not ad.Zero]
        mixed = [(moved[i][0], given[i][1]) if side == 0 else (given[i][0], moved[i][1]) for i in moving]
        for i, term in zip(moving, _bind(mixed, **dict(params, strict=False)), strict=True):
            terms[i].append(term)
    return outs, [tangent_of(out, own) for out, own in zip(outs, terms, strict=True)]


ad.primitive_jvps[many_p] = _jvp_rule

#: The cotangent of a (side 0) or b (side 1), by which of the two is transposed: whether it is ct times the other
#: operand or that times ct, and which of these is transposed.
_COTANGENTS: dict[tuple[tuple[bool, bool], int], tuple[bool, tuple[bool, bool]]] = {
    ((False, False), 0): (True, (False, True)),  # d = a b: da = ct b^T
    ((False, False), 1): (False, (True, False)),  # db = a^T ct
    ((False, True), 0): (True, (False, False)),  # d = a b^T: da = ct b
    ((False, True), 1): (True, (True, False)),  # db = ct^T a
    ((True, False), 0): (False, (False, True)),  # d = a^T b: da = b ct^T
    ((True, False), 1): (False, (False, False)),  # db = a ct
}


def _transpose_rule(cts: Any, *operands: Any, **params: Any) -> list[Any]:
    pairs = _pairs(operands)
    unknown = [tuple(map(ad.is_undefined_primal, pair)) for pair in pairs]
    if (True, True) in unknown:
        raise NotImplementedError("jaxgemm: a product is linear in one operand at a time")
    found: list[list[Any]] = [[None] * len(pairs), [None] * len(pairs)]
    for side in (0, 1):
        moving = []
        for i, of in enumerate(unknown):
            if of[side] and type(cts[i]) is ad.Zero:
                found[side][i] = ad.Zero(pairs[i][side].aval)
            elif of[side]:
                moving.append(i)
        if moving:
            ct_first, transposed = _COTANGENTS[params["transposed"], side]
            both = [of_one_type(cts[i], pairs[i][1 - side]) for i in moving]
            wanted = np.dtype(pairs[moving[0]][side].aval.dtype)
            derived = dict(params, transposed=transposed, preferred_element_type=wanted, strict=False)
            results = _bind([pair if ct_first else pair[::-1] for pair in both], **derived)
            for i, result in zip(moving, results, strict=True):
                found[side][i] = result
    return [*found[0], *found[1]]


ad.primitive_transposes[many_p] = _transpose_rule


def product(x: jax.Array, y: jax.Array, **params: Any) -> jax.Array:
    """One of the products by itself."""
    own = {name: params[name] for name in ("precision", "preferred_element_type", "kernel", "options", "strict")}
    own |= {"dimension_numbers": _dims(params["transposed"]), "out_sharding": None}
    out: jax.Array = gemm_p.bind(*vary_alike(x, y), epilogue=Epilogue(), batch_invariant=False, **own)
    return out


def _batch_rule(args: Any, bdims: Any, **params: Any) -> tuple[list[Any], list[int | None]]:
    """What is mapped becomes an ordinary product each; the others stay together."""
    pairs, axes = _pairs(args), _pairs(bdims)
    outs: list[Any] = [None] * len(pairs)
    kept = [i for i, axis in enumerate(axes) if axis == (None, None)]
    for i, out in zip(kept, _bind([pairs[i] for i in kept], **params), strict=True):
        outs[i] = out
    for i, (pair, axis) in enumerate(zip(pairs, axes, strict=True)):
        if axis != (None, None):
            outs[i] = jax.vmap(partial(product, **params), in_axes=axis)(*vary_alike(*pair))
    return outs, [None if axis == (None, None) else 0 for axis in axes]


batching.primitive_batchers[many_p] = _batch_rule


# --- Lowering -------------------------------------------------------------------------------------------------


def problems(operands: Sequence[Any], params: dict[str, Any]) -> list[Problem]:
    """The problem of each product, for operands with shapes and types."""
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


def decide(device: Device, operands: Sequence[Any], params: dict[str, Any]) -> Choice:
    """The kernel that computes all products in as few launches as it can; no kernel where each is a product by itself.

    Raises:
        UnsupportedError: a kernel asked for by name has such a form, which cannot run these.
    """
    kernel = params["kernel"]
    if kernel == "xla":
        return Choice(None, (), 0, "XLA's products were asked for by name", rule=rules.BY_NAME.name)
    if symbolic.extents(operands):
        return Choice(None, (), 0, "symbolic extents", rule=rules.SYMBOLIC.name)
    every = problems(operands, params)
    own = [every[i] for i in multiplied(every)]
    by_name = kernel != "auto"
    if len(own) < (1 if by_name else 2):
        return Choice(None, (), 0, rules.MANY_FEW.says, rule=rules.MANY_FEW.name)
    candidates = [find_kernel(kernel)] if by_name else [row for row in kernels() if row.platform == device.platform]
    rows = [row for row in candidates if row.many]
    if not rows:
        has = f"kernel '{kernel}' has no" if by_name else f"no kernel for {device.platform} has a"
        return Choice(None, (), 0, f"{has} form for many products", rule=rules.MANY_MISSING.name)
    reasons = []
    for row in rows:
        found = _resolve(row, params, own, device)
        if isinstance(found, Choice):
            return found
        reasons.append(found)
    if by_name and params["strict"]:
        raise UnsupportedError("; ".join(reasons))
    return Choice(None, (), 0, "; ".join(reasons), rule=rules.UNFIT.name)


def _resolve(row: Kernel, params: dict[str, Any], own: Sequence[Problem], device: Device) -> Choice | str:
    """The kernel for products that are not empty, or why it cannot run them."""
    types = own[0].dtypes
    if row.platform != device.platform:
        return f"kernel '{row.name}' runs on {row.platform}, the program is for {device.platform}"
    first = computed(row, own[0], params["precision"])
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


def launch(choice: Choice, *operands: jax.Array, **params: Any) -> list[jax.Array]:
    """All products by one call of the chosen kernel, which has that form."""
    assert choice.kernel is not None
    every = problems(operands, params)
    own = multiplied(every)
    out = params["preferred_element_type"]
    shapes = [jax.ShapeDtypeStruct((p.m, p.n), out) for p in every]
    results = [shapes[i] for i in own]
    if choice.workspace:
        results.append(jax.ShapeDtypeStruct((-(-choice.workspace // 256) * 256,), jnp.uint8))
    xs, ys = zip(*(_pairs(operands)[i] for i in own), strict=True)
    asked = [replace(every[i], arithmetic=choice.arithmetic) for i in own]
    attributes = wire.many_attributes(choice.kernel.name, choice.config, asked)
    found = dict(zip(own, jax.ffi.ffi_call(MANY_TARGET, results)(*xs, *ys, **attributes), strict=False))
    return [found[i] if i in found else jnp.zeros(s.shape, s.dtype) for i, s in enumerate(shapes)]


def compose(*operands: jax.Array, **params: Any) -> list[jax.Array]:
    """The same, each a product by itself."""
    return [product(x, y, **params) for x, y in _pairs(operands)]


def _rule(platform: str, ctx: Any, *operands: Any, **params: Any) -> Any:
    function: Any = compose
    divided = is_partitioned(ctx) or is_partly_manual(ctx) or explicit_axes(ctx.avals_out[0].sharding.mesh)
    # As for single products, "auto" leaves those of programs on several devices to XLA.
    if not divided and (params["kernel"] != "auto" or device_count(ctx) == 1):
        choice = decide(device_for(platform), ctx.avals_in, params)
        if choice.kernel is not None:
            function = partial(launch, choice)
    return mlir.lower_fun(partial(function, **params), multiple_results=True)(ctx, *operands)


# What many_p is lowered to once the transpositions in front of its operands are found, as in jaxgemm/primitive.py.
_products_p = Primitive("jaxgemm_products")
_products_p.multiple_results = True
_products_p.def_effectful_abstract_eval(_abstract_eval)
for _platform in ("cuda", "cpu"):
    mlir.register_lowering(_products_p, partial(_rule, _platform), platform=_platform)
mlir.register_lowering(_products_p, partial(_rule, "other"))


def _outer_rule(ctx: Any, *operands: Any, **params: Any) -> Any:
    orders = [lowered_order(value) for value in operands]
    through, avals, transposed = read_through_all(orders, ctx.avals_in, params["transposed"])
    values = [x.owner.operands[0] if y else x for x, y in zip(operands, through, strict=True)]
    products = partial(_products_p.bind, **dict(params, transposed=transposed))
    return mlir.lower_fun(products, multiple_results=True)(ctx.replace(avals_in=avals), *values)


mlir.register_lowering(many_p, _outer_rule, cacheable=False)
needs_devices_while_lowering(many_p)
