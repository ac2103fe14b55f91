"""Says what each product of a program becomes: the kernel, its configuration, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.extend.core import Jaxpr, Literal

from jaxgemm import api, gated, many, roofline
from jaxgemm import precision as prec
from jaxgemm.choice import rules
from jaxgemm.choice.select import INVARIANT_ROWS, Choice
from jaxgemm.dtypes import ELEMENT_TYPES
from jaxgemm.epilogue import Epilogue
from jaxgemm.grouped import fused
from jaxgemm.grouped import launch as grouped_launch
from jaxgemm.grouped.fused import grouped_fused_p
from jaxgemm.grouped.primitive import grouped_p
from jaxgemm.grouped.report import describe
from jaxgemm.kernels import Kernel, default_platform, device_for
from jaxgemm.left import Left, products_left
from jaxgemm.override import routing_of
from jaxgemm.primitive import Decision, decide, gemm_p
from jaxgemm.problem import Axes, Plan, Problem
from jaxgemm.transposes import read_through, read_through_all, traced_order
from jaxgemm.xla_product import why_padded


@dataclass(frozen=True)
class Product:
    """One product of a program, or the two of a gated pair where one launch computes both.

    Attributes:
        operands: "float32[128,64] x float32[64,32]"; of a pair in one launch "... x (..., ...)".
        result: element type of the product.
        decision: the kernel or XLA, and the strided problem.
        epilogue: what follows the product.
        precision: as asked for.
        floor: the least time the device needs for it, None where the device's rates are not known.
        trips: how often the program runs it, where that is static (the length of a scan).
        gated: whether it is of a gated pair, and how that is computed; empty: it is not.
        many: whether it is one of many, and how those are computed; empty: it is not.
        padded: how XLA's operands are padded, and why; empty: they are not.
        groups: of a product of groups, its form and shape; empty: it is none.
    """

    operands: str
    result: str
    decision: Decision
    epilogue: Epilogue
    precision: prec.Precision
    floor: roofline.Floor | None
    trips: int
    gated: str = ""
    many: str = ""
    padded: str = ""
    groups: str = ""

    @property
    def kernel(self) -> str:
        """Name of the kernel; "xla" for XLA's own product."""
        row = self.decision.choice.kernel
        return row.name if row else "xla"

    def __str__(self) -> str:
        times = "" if self.trips == 1 else f"  ({self.trips} times)"
        labelled = [f"  {label:10} {text}" for label, text in self._lines()]
        return "\n".join([f"{self.operands} -> {self.result}{times}", *labelled])

    def _lines(self) -> Iterator[tuple[str, str]]:
        """What is said of the product, each with its label; an empty one goes on with the line before."""
        choice, problem = self.decision.choice, self.decision.problem
        yield "kernel", f"{self.kernel}: {choice.why}"
        if choice.rule:
            yield "rule", choice.rule
        if choice.ours is not None or choice.theirs is not None:
            yield "expected", _expected(choice, problem is not None and problem.gated, bool(self.groups))
        if self.groups:
            yield "problem", self.groups
        elif problem is not None:
            batch = "" if problem.batch == (1, 1) else f", batch {problem.batch[0]} x {problem.batch[1]}"
            yield "problem", f"m {problem.m}, n {problem.n}, k {problem.k}{batch}, layout {problem.layout}"
        if self.gated:
            yield "gated", self.gated
        if self.many:
            yield "many", self.many
        if self.padded:
            yield "padded", self.padded
        if choice.kernel is not None:
            yield from self._lines_of_ours(choice.kernel)
        elif self.epilogue != Epilogue():
            yield "epilogue", f"{_epilogue(self.epilogue)}, written in jnp, which XLA may fuse"
        if self.floor is not None:
            yield "floor", f"{self.floor.seconds * 1e6:.1f} us, bound by {self.floor.bound} ({self.floor.unit})"

    def _lines_of_ours(self, kernel: Kernel) -> Iterator[tuple[str, str]]:
        """What is said of a product that a kernel of ours computes."""
        choice, problem, view = self.decision.choice, self.decision.problem, self.decision.view
        yield "options", _options(kernel, choice.config) or "the kernel's own"
        if problem is not None:
            yield from self._lines_around(problem, view)
        yield "workspace", f"{choice.workspace} bytes"
        invariant = choice.rule == rules.INVARIANT.name and not self.groups  # whose tiles follow m
        best = choice.considered[0] if choice.considered else None
        more = bool(self.groups) and best is not None and choice.ours is not None and choice.ours > best.microseconds
        of = " of one launch" if more else f" of {INVARIANT_ROWS} rows" if invariant else ""
        if best is not None and best.parts and not invariant:
            shown = ", ".join(f"{name.replace('_', ' ')} {us:.1f}" for name, us in best.parts if us >= _SHOWN_US)
            yield "parts", f"{shown} us{of}"
        expected = f"us expected{of}"
        for i, candidate in enumerate(choice.considered):
            differs = _options(kernel, candidate.config, choice.config) or "as chosen"
            yield "" if i else "candidates", f"{candidate.microseconds:.1f} {expected}: {differs}"

    def _lines_around(self, problem: Problem, view: Plan | None) -> Iterator[tuple[str, str]]:
        """What is said of what comes before and after a product by a kernel of ours."""
        axes = (view.lhs_axes, view.rhs_axes, view.d_axes) if view else ()
        copies = [name for name, moved in zip(("lhs", "rhs", "result"), axes, strict=False) if moved]
        after = f"{_epilogue(self.epilogue)}{' * (a b_up)' if problem.gated else ''}"
        yield "epilogue", after if problem.epilogue == self.epilogue else f"{after}, composed in jnp"
        yield "copies", ", ".join(copies) or "none"


@dataclass(frozen=True)
class Explanation:
    """The products of a program, in the order of its jaxpr, on one device.

    Attributes:
        device: the device's name.
        products: one entry a product.
        left: the products that are XLA's own because nothing routes them to jaxgemm; see :func:`jaxgemm.override`.
    """

    device: str
    products: tuple[Product, ...]
    left: tuple[Left, ...] = ()

    def __str__(self) -> str:
        count = len(self.products)
        head = f"{count} product{'' if count == 1 else 's'} on {self.device}"
        head += f", {len(self.left)} more left to XLA" if self.left else ""
        return "\n\n".join([head, *map(str, self.products), *map(str, self.left)])


def explain(function: Any, *args: Any, platform: str | None = None, **kwargs: Any) -> Explanation:
    """What the products of a program become, without running it.

    Args:
        function: a function of ``args`` that calls jaxgemm or is :func:`jaxgemm.override`'s; or the first operand
            of a ``gemm`` whose other arguments follow. Arguments may be arrays or ``jax.ShapeDtypeStruct``.
        *args: the function's arguments.
        platform: "cuda" or "cpu"; by default that of JAX's default device. "cuda" without such a device
            explains for an H200.
        **kwargs: the function's keyword arguments, taken as static.

    Returns:
        An :class:`Explanation`; print it, or read ``.products``.

    Raises:
        UnsupportedError: a kernel asked for by name cannot run its product.
    """
    if not callable(function):
        return explain(lambda *operands: api.gemm(*operands, **kwargs), function, *args, platform=platform)
    target = platform or default_platform()
    closed = jax.make_jaxpr(lambda *operands: function(*operands, **kwargs))(*args)
    limits = _limits(target)
    name = limits.name if limits else target
    products = [p for eqn, orders, n in _walk(closed.jaxpr, 1) for p in _products(eqn, orders, target, limits, n)]
    return Explanation(name, tuple(products), tuple(products_left(closed.jaxpr, routing_of(function))))


def _walk(jaxpr: Jaxpr, trips: int) -> Iterator[tuple[Any, list[Axes | None], int]]:
    """Products, how their operands are transposed, and how often they run."""
    makers: dict[Any, Any] = {v: eqn for eqn in jaxpr.eqns for v in eqn.outvars}
    for eqn in jaxpr.eqns:
        if eqn.primitive in (gemm_p, gated.gated_p, grouped_p, grouped_fused_p, many.many_p):
            operands = [None if isinstance(v, Literal) else makers.get(v) for v in eqn.invars]
            yield eqn, [traced_order(maker) for maker in operands], trips
        times = trips * eqn.params["length"] if eqn.primitive.name == "scan" else trips
        for inner in _inner(eqn.params):
            yield from _walk(inner, times)


def _inner(params: dict[str, Any]) -> Iterator[Jaxpr]:
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            item = getattr(item, "jaxpr", item)
            if isinstance(item, Jaxpr):
                yield item


def _products(
    eqn: Any, orders: list[Axes | None], platform: str, limits: roofline.DeviceLimits | None, trips: int
) -> Iterator[Product]:
    avals = [v.aval for v in eqn.invars]
    if eqn.primitive is gemm_p:
        _, types, dims = read_through(orders[:2], avals[:2], eqn.params["dimension_numbers"])
        decision = decide(platform, [*types, *avals[2:]], dict(eqn.params, dimension_numbers=dims))
        padded = why_padded(platform, types[0], types[1], dims) if decision.choice.kernel is None else ""
        yield replace(_product(avals, eqn.params, decision, limits, trips), padded=padded)
        return
    if eqn.primitive is grouped_p:
        choice = grouped_launch.decide(platform, avals, eqn.params)
        yield _grouped(avals, eqn.params, choice, grouped_launch.problem_of, Epilogue(), limits, trips)
        return
    if eqn.primitive is grouped_fused_p:
        yield from _grouped_fused(avals, eqn.params, platform, limits, trips)
        return
    if eqn.primitive is many.many_p:
        _, types, transposed = read_through_all(orders, avals, eqn.params["transposed"])
        yield from _many(avals, types, dict(eqn.params, transposed=transposed), platform, limits, trips)
        return
    decision = gated.decide(device_for(platform), avals, eqn.params)
    if decision.choice.kernel is not None:
        params = dict(eqn.params, epilogue=Epilogue(activation=eqn.params["activation"]))
        yield replace(_product(avals, params, decision, limits, trips), gated=_BOTH)
        return
    composed = _composed(partial(gated.compose, **eqn.params), avals, platform, limits, trips)
    yield from _pair(composed, decision.choice)


def _composed(
    compose: Any, avals: list[Any], platform: str, limits: roofline.DeviceLimits | None, trips: int
) -> Iterator[Product]:
    """The products that ``compose`` takes for operands of these types."""
    structs = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in avals]
    for eqn, orders, _ in _walk(jax.make_jaxpr(compose)(*structs).jaxpr, 1):
        yield from _products(eqn, orders, platform, limits, trips)


def _pair(products: Iterator[Product], instead: Choice) -> Iterator[Product]:
    """Both products of a gated pair; ``instead`` says why they are not one launch."""
    for which, product in zip(("gate", "up"), products, strict=True):
        yield replace(product, gated=f"{which}, of two products composed in jnp: {instead.why} ({instead.rule})")


def _grouped_fused(
    avals: list[Any], params: dict[str, Any], platform: str, limits: roofline.DeviceLimits | None, trips: int
) -> Iterator[Product]:
    choice, after = fused.decide(platform, avals, params), fused.epilogue(params)
    if choice.kernel is not None:
        product = _grouped(avals, params, choice, fused.problem_of, after, limits, trips)
        yield replace(product, gated=_BOTH if params["gated"] else "")
        return
    # Explained is what runs on one device.
    composed = _composed(partial(fused.compose, **dict(params, out_sharding=None)), avals, platform, limits, trips)
    if params["gated"]:
        yield from _pair(composed, choice)
    else:
        yield from (replace(product, epilogue=after) for product in composed)


def _grouped(
    avals: list[Any],
    params: dict[str, Any],
    choice: Choice,
    problem_of: Any,
    after: Epilogue,
    limits: roofline.DeviceLimits | None,
    trips: int,
) -> Product:
    """A grouped product, which a kernel computes as the problem of its operands and parameters."""
    by = Decision(choice, problem_of(avals, params) if choice.kernel is not None else None, None)
    found = describe(avals, params, limits)
    precision = params["precision"]
    return Product(found.operands, found.result, by, after, precision, found.floor, trips, groups=found.problem)


def _many(
    avals: list[Any],
    types: list[Any],
    params: dict[str, Any],
    platform: str,
    limits: roofline.DeviceLimits | None,
    trips: int,
) -> Iterator[Product]:
    """Many products, of operands with these types before their transpositions."""
    choice = many.decide(device_for(platform), types, params)
    if choice.kernel is not None:
        each = dict(params, epilogue=Epilogue())
        for problem, x, y in zip(many.problems(types, params), *many.halves(avals), strict=True):
            how = f"one of {len(avals) // 2}" if problem.m and problem.n and problem.k else "zeros, without a launch"
            yield replace(_product([x, y], each, Decision(choice, problem, None), limits, trips), many=how)
        return
    composed = _composed(partial(many.compose, **params), types, platform, limits, trips)
    for x, y, product in zip(*many.halves(avals), composed, strict=True):
        why = f"by itself: {choice.why} ({choice.rule})"
        yield replace(product, operands=f"{_type(x)} x {_type(y)}", many=why)


def _product(
    avals: list[Any], params: dict[str, Any], decision: Decision, limits: roofline.DeviceLimits | None, trips: int
) -> Product:
    problem = decision.problem
    gated_pair = problem is not None and problem.gated
    floor = None
    if limits is not None and problem is not None and all(t in ELEMENT_TYPES for t in problem.dtypes):
        a, b, d = problem.dtypes
        floor = roofline.floor(
            problem.m,
            problem.n,
            problem.k,
            limits=limits,
            a=a,
            b=b,
            d=d,
            batch=problem.batch[0] * problem.batch[1],
            precision="highest" if prec.wants_full_fp32(params["precision"]) else "default",
            weights=2 if gated_pair else 1,
        )
    lhs, *rhs = map(_type, avals[: 3 if gated_pair else 2])
    text = f"{lhs} x ({', '.join(rhs)})" if gated_pair else f"{lhs} x {rhs[0]}"
    result = problem.dtypes[2] if problem is not None else np.dtype(params["preferred_element_type"]).name
    return Product(text, result, decision, params["epilogue"], params["precision"], floor, trips)


def _type(aval: Any) -> str:
    return f"{aval.dtype.name}[{','.join(map(str, aval.shape))}]"


def _limits(platform: str) -> roofline.DeviceLimits | None:
    if platform != "cuda":
        return None
    return roofline.attached_device() or roofline.KNOWN_DEVICES["NVIDIA H200"]


#: A part of an expected time that is less than this would be printed as 0.0, and is left out.
_SHOWN_US = 0.05


#: What is said of a gated pair that is one launch.
_BOTH = "both products of the pair"


def _expected(choice: Choice, gated: bool, grouped: bool) -> str:
    """Both expected times, whoever was chosen."""
    ours, theirs = ("not modelled" if us is None else f"{us:.1f} us" for us in (choice.ours, choice.theirs))
    if grouped:
        return f"{choice.contender} {ours}, a dense product for each group {theirs}"
    if gated:
        return f"one launch of {choice.contender} {ours}, two products {theirs}"
    return f"{choice.contender or 'ours'} {ours}, XLA's product {theirs}"


def _options(kernel: Kernel, config: tuple[int, ...], beside: tuple[int, ...] = ()) -> str:
    """A configuration as keyword arguments; what is left open is not named, nor what another has alike."""
    other = dict(zip(kernel.options, beside, strict=False))
    settings = zip(kernel.options, config, strict=False)
    return ", ".join(f"{name}={value}" for name, value in settings if value and other.get(name) != value)


def _epilogue(e: Epilogue) -> str:
    terms = [f"{e.alpha:g} * a b" if e.alpha != 1.0 else "a b"]
    terms += [f"{e.beta:g} * c"] if e.has_c else []
    terms += ["bias"] if e.has_bias else []
    text = " + ".join(terms)
    return f"{e.activation}({text})" if e.activation else text
