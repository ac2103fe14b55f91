"""What ``explain`` says of products: a kind describes each of its products by a :class:`Product`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxgemm import precision as prec
from jaxgemm import roofline
from jaxgemm.choice import rules
from jaxgemm.choice.invariant import INVARIANT_ROWS
from jaxgemm.choice.resolve import Choice
from jaxgemm.dtypes import ELEMENT_TYPES
from jaxgemm.epilogue import Epilogue
from jaxgemm.kernels import Kernel
from jaxgemm.problem import Plan, Problem
from jaxgemm.products.kind import Decision, Params


@dataclass(frozen=True)
class Product:
    """One product of a program, or both products of a gated pair that one launch computes.

    Attributes:
        operands: "float32[128,64] x float32[64,32]"; of a pair in one launch "... x (..., ...)".
        result: element type of the product.
        decision: the kernel or XLA, and the strided problem.
        epilogue: what follows the product.
        precision: as asked for.
        floor: the least time the device needs for the product; None if the device's rates are not known.
        trips: how often the program runs the product, as far as that is static (the length of a scan).
        gated: how the gated pair is computed that the product is part of; empty if it is part of none.
        many: how the list of products is computed that the product is one of; empty if it is in no list.
        padded: how XLA's operands are padded, and why; empty if they are not.
        groups: form and shape of a product of groups; empty for other products.
        scaled: why jnp applies scales; empty if the launch applies all, or there are none.
    """

    operands: str
    result: str
    decision: Decision
    epilogue: Epilogue
    precision: prec.Precision
    floor: roofline.Floor | None
    trips: int = 1
    gated: str = ""
    many: str = ""
    padded: str = ""
    groups: str = ""
    scaled: str = ""

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
        """The lines, each with its label. An empty label continues the line before."""
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
        if self.scaled:
            yield "scales", self.scaled
        if choice.kernel is not None:
            yield from self._lines_of_ours(choice.kernel)
        elif self.epilogue != Epilogue():
            yield "epilogue", f"{_epilogue(self.epilogue)}, written in jnp, which XLA may fuse"
        if self.floor is not None:
            yield "floor", f"{self.floor.seconds * 1e6:.1f} us, bound by {self.floor.bound} ({self.floor.unit})"

    def _lines_of_ours(self, kernel: Kernel) -> Iterator[tuple[str, str]]:
        """The lines for a product that a kernel of ours computes."""
        choice, problem, view = self.decision.choice, self.decision.problem, self.decision.view
        if problem is not None and problem.dtypes[0] == "float32" and not problem.groups:
            yield "arithmetic", _arithmetic(choice.arithmetic, problem.k)
            for name, us in choice.beside:
                yield "", f"{name}, which the precision allows too, expects {us:.1f} us"
        yield "options", _options(kernel, choice.config) or "the kernel's own"
        if problem is not None:
            yield from self._lines_around(problem, view)
        yield "workspace", f"{choice.workspace} bytes"
        invariant = choice.rule == rules.INVARIANT.name and not self.groups  # grouped tiles depend on m
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
        """The lines for what comes before and after a product by a kernel of ours."""
        axes = (view.lhs_axes, view.rhs_axes, view.d_axes) if view else ()
        copies = [name for name, moved in zip(("lhs", "rhs", "result"), axes, strict=False) if moved]
        after = f"{_epilogue(self.epilogue, problem.scales)}{' * (a b_up)' if problem.gated else ''}"
        yield "epilogue", after if problem.epilogue == self.epilogue else f"{after}, composed in jnp"
        yield "copies", ", ".join(copies) or "none"


def of_problem(
    avals: Sequence[Any], params: Params, decision: Decision, limits: roofline.DeviceLimits | None
) -> Product:
    """A dense product of the first two operands, or the pair of the first three, decided for as one problem."""
    problem = decision.problem
    weights = 2 if problem is not None and problem.gated else 1
    after = params.get("epilogue") or Epilogue(activation=params.get("activation"))
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
            precision=prec.floored(params["precision"], np.dtype(avals[0].dtype)),
            weights=weights,
        )
    result = problem.dtypes[2] if problem is not None else np.dtype(params["preferred_element_type"]).name
    both = BOTH if weights == 2 else ""
    return Product(operands_of(avals[: 1 + weights]), result, decision, after, params["precision"], floor, gated=both)


def alone(avals: Sequence[Any], params: Params, decision: Decision, limits: Any, **_: Any) -> list[Product]:
    """The one product, or pair, of a kind of which ``explain`` has no more to say: ``Kind.describe``."""
    return [of_problem(avals, params, decision, limits)]


def scaled_in_jnp(products: Iterable[Product], instead: Choice) -> Iterator[Product]:
    """A product whose scales are applied by jnp; ``instead`` says why it is not one launch."""
    for product in products:
        yield replace(product, scaled=f"applied by jnp: {instead.why} ({instead.rule})")


def operands_of(avals: Sequence[Any]) -> str:
    """The operands of a product, or of both of a pair, by their types."""
    lhs, *rhs = (f"{x.dtype.name}[{','.join(map(str, x.shape))}]" for x in avals)
    return f"{lhs} x {rhs[0] if len(rhs) == 1 else f'({rhs[0]}, {rhs[1]})'}"


#: What ``explain`` says of a gated pair that one launch computes.
BOTH = "both products of the pair"


def pair(products: Iterable[Product], instead: Choice) -> Iterator[Product]:
    """Both products of a gated pair; ``instead`` says why they are not one launch."""
    for which, product in zip(("gate", "up"), products, strict=True):
        yield replace(product, gated=f"{which}, of two products composed in jnp: {instead.why} ({instead.rule})")


#: Parts of an expected time that are shorter would be printed as 0.0, and are left out.
_SHOWN_US = 0.05


def _expected(choice: Choice, gated: bool, grouped: bool) -> str:
    """Both expected times, whoever was chosen."""
    ours, theirs = ("not modelled" if us is None else f"{us:.1f} us" for us in (choice.ours, choice.theirs))
    if grouped:
        return f"{choice.contender} {ours}, a dense product for each group {theirs}"
    if gated:
        return f"one launch of {choice.contender} {ours}, two products {theirs}"
    return f"{choice.contender or 'ours'} {ours}, XLA's product {theirs}"


def _arithmetic(name: str, k: int) -> str:
    """How a kernel multiplies float32 operands, and what errors its sums may have."""
    does = prec.ARITHMETICS[name] or "multiplies float32 operands as they are"
    bound = prec.bound_of(name, k)
    return f"{name}: {does}" + ("" if bound is None else f"; errors of at most {bound:.1e} of the sum of |a| |b|")


def _options(kernel: Kernel, config: tuple[int, ...], beside: tuple[int, ...] = ()) -> str:
    """A configuration as keyword arguments, without open options and options with the value that ``beside`` has."""
    other = dict(zip(kernel.options, beside, strict=False))
    settings = zip(kernel.options, config, strict=False)
    return ", ".join(f"{name}={value}" for name, value in settings if value and other.get(name) != value)


def _epilogue(e: Epilogue, scales: tuple[int, int] | None = None) -> str:
    factors = [f"{e.alpha:g}"] * (e.alpha != 1.0) + ["a b"]
    factors += [name for name, given in zip(("a_scale", "b_scale"), scales or (), strict=False) if given]
    terms = [" * ".join(factors)]
    terms += [f"{e.beta:g} * c"] if e.has_c else []
    terms += ["bias"] if e.has_bias else []
    text = " + ".join(terms)
    return f"{e.activation}({text})" if e.activation else text
