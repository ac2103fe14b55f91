"""A random product of groups for tests/fuzz.py, as fuzz_cases.py has dense ones.

All its rows that are of no group hold NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import cases
import group_cases
import guards
import jax
import numpy as np
from fuzz_cases import LARGEST, MOST, SETS, about, one, twice, types_together
from group_cases import FORMS, KINDS, Grouped

import jaxgemm
from jaxgemm.epilogue import Epilogue

#: Types of operands and of the result that "auto" is given beside those that kernels have.
WIDE = (("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32"), ("float16", "float16"))


@dataclass(frozen=True)
class Case:
    """A product of groups, but not its numbers.

    Attributes:
        kernel: what ``kernel=`` gets; with ``options`` it is launched without the public function, which has none.
        form: one of group_cases.FORMS.
        types: of the operands and of the result.
        shape: m, k, n.
        groups: how many sizes there are.
        kind: what the sizes are like, one of group_cases.KINDS.
        held: how many groups have weights or a result.
        offset: the first of these; None: all have.
        members: of a batch; 0: there is none.
        mapped: the operands that differ along it.
        guarded: whether every buffer lies between poison.
    """

    kernel: str
    form: str
    types: tuple[str, str]
    shape: tuple[int, int, int]
    groups: int
    kind: str
    held: int
    offset: int | None = None
    members: int = 0
    mapped: tuple[str, ...] = ()
    bias: bool = False
    activation: str | None = None
    gated: bool = False
    options: tuple[tuple[str, int], ...] = ()
    guarded: bool = True

    def __str__(self) -> str:
        text = [self.kernel, self.form, "->".join(self.types), "x".join(map(str, self.shape)), f"{self.groups} groups"]
        text += [f"({self.kind})"]
        text += [f"held={self.held} offset={self.offset}"] if self.offset is not None else []
        text += [f"{self.members} members of {', '.join(self.mapped)}"] if self.members else []
        text += [f"{name}={value}" for name, value in self.options] + [self.activation] * bool(self.activation)
        return " ".join([*text, *(name for name in ("bias", "gated", "guarded") if getattr(self, name))])

    def operands(self, rng: np.random.Generator) -> Grouped:
        """Numbers and sizes."""
        return Grouped.random(
            rng,
            self.form,
            self.shape,
            group_cases.sizes(rng, self.kind, self.groups, self.shape[0]),
            self.types,
            held=self.held,
            offset=self.offset,
            bias=self.bias,
            activation=self.activation,
            gated=self.gated,
            precision="highest" if self.types[0] == "float32" else None,  # which XLA computes in TF32 otherwise
        ).spoilt()


# --- Drawing ----------------------------------------------------------------------------------------------------


def draw(seed: int, index: int, rows: list[jaxgemm.Kernel]) -> Case:
    """The case of that index, whatever was drawn before: for those of the kernels that have groups, and "auto"."""
    rng = np.random.default_rng((seed, index))
    able = [row for row in rows if row.grouped]
    row = one(rng, able) if able and rng.random() < 0.75 else None
    types = sorted({(a, d) for a, b, d, _ in types_together(able) if a == b})
    types = types if row else [*types, *WIDE]
    form, groups = one(rng, FORMS), about(rng, 1, 300)
    held, offset = groups, None
    if rng.random() < 0.3:
        held, offset = int(rng.integers(1, groups + 2)), int(rng.integers(-2, groups + 1))
    case = Case(
        kernel="auto" if row is None else row.name,
        form=form,
        types=one(rng, types),
        shape=_extents(rng, held, MOST if row else min(MOST, 10 * MOST / held)),  # XLA may multiply all rows held times
        groups=groups,
        kind=one(rng, KINDS),
        held=held,
        offset=offset,
        guarded=bool(rng.random() < 0.6),
    )
    if row is not None and rng.random() < 0.5:
        with_options = _with_options(rng, case if form == "sums" else _epilogue(rng, case, gated=row.gated))
        if with_options is not None:
            return with_options
    if form == "rows":  # the public functions have no epilogue for the others
        case = _epilogue(rng, case, gated=True)
    if form == "sums" and offset is not None:  # a gradient, whose type is that of the operands
        case = replace(case, types=(case.types[0], case.types[0]))
    if offset is None and rng.random() < 0.2:
        mapped = [("lhs", "rhs", "sizes")] + [("lhs", "sizes")] * (form != "sums")
        case = replace(case, members=int(rng.integers(2, 4)), mapped=one(rng, mapped))
    return case


def _extents(rng: np.random.Generator, held: int, most: float) -> tuple[int, int, int]:
    m, k, n = about(rng, 1, 4000), about(rng, 1, 700), about(rng, 1, 900)
    k, n = (-(-x // 8) * 8 if rng.random() < 0.6 else x for x in (k, n))
    while m * k * n > most or held * k * n > LARGEST:
        k, n = -(-k * 2 // 3), -(-n * 2 // 3)
        m = m if held * k * n > LARGEST else -(-m * 2 // 3)
    empty = rng.integers(3) if rng.random() < 0.03 else None
    m, k, n = (0 if i == empty else x for i, x in enumerate((m, k, n)))
    return m, k, n


def _epilogue(rng: np.random.Generator, case: Case, *, gated: bool) -> Case:
    activation = one(rng, cases.ACTIVATIONS) if rng.random() < 0.3 else None
    if gated and case.form == "rows" and rng.random() < 0.4:
        return replace(case, gated=True, activation=activation)
    return replace(case, bias=bool(rng.random() < 0.3), activation=activation)


def _with_options(rng: np.random.Generator, case: Case) -> Case | None:
    """The case with the options of a configuration that can compute it; None if none can."""
    epilogue = Epilogue(has_bias=case.bias, activation=case.activation)
    problem = group_cases.problem(
        case.form, case.shape, case.groups, case.held, case.types, epilogue=epilogue, gated=case.gated
    )
    found = group_cases.configurations(case.kernel, problem)
    if not found:
        return None
    return replace(case, options=tuple((one(rng, found) | {"walk_height": int(rng.integers(1, 17))}).items()))


# --- Running ----------------------------------------------------------------------------------------------------


def program(case: Case, given: list[Grouped]) -> tuple[Callable[..., Any], dict[str, np.ndarray]]:
    """The call, and its operands."""
    if case.options:
        options = dict(case.options)
        return (lambda arrays: given[0].launched(arrays, case.kernel, options)), given[0].arrays
    if case.members:
        return group_cases.together(given, case.mapped, case.kernel)
    return (lambda arrays: given[0].call(arrays, case.kernel)), given[0].arrays


def members(case: Case, rng: np.random.Generator) -> list[Grouped]:
    """The products of a batch; without one it is one product."""
    first, *others = (case.operands(rng) for _ in range(max(case.members, 1)))
    return [first, *(replace(first, **{name: getattr(p, name) for name in case.mapped}) for p in others)]


def fuzz(case: Case, numbers: Any) -> str:
    """Run a case on numbers of that seed, with sizes that change from one set to the next: its kernel, or "xla".

    Raises:
        UnsupportedError: the kernel refuses it.
        AssertionError: a result is wrong.
    """
    rng = np.random.default_rng(numbers)
    sets = [members(case, rng) for _ in range(SETS)]
    function, arrays = program(case, sets[0])
    with guards.guarded() if case.guarded else guards.counted() as called:
        lowered = jax.jit(function).lower(group_cases.on_device(arrays))
    run, exact = lowered.compile(), bool(called) and group_cases.fused(sets[0][0], lowered.as_text())
    for given in sets:
        arrays = group_cases.on_device(program(case, given)[1])
        result = twice(case, run, arrays, given[0], guarded=case.guarded and bool(called))
        for p, part in zip(given, result if case.members else [result], strict=True):
            p.check(part, exact=exact, kernel=case.kernel)
    return called[0] if called else "xla"
