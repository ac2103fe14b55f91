"""A random list of products for tests/fuzz.py, as fuzz_cases.py has single ones: ``jaxgemm.grouped_gemm``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import guards
import jax
import jax.numpy as jnp
import numpy as np
from cases import LAYOUTS
from fuzz_cases import LARGEST, MOST, SETS, about, one, same_bits, types_together
from oracle import Product, coarser, poison

import jaxgemm

#: Tiles that many products share a launch by, as options of sm90.
TILES: tuple[dict[str, int], ...] = tuple({"tile_m": m, "tile_n": n} for m, n in ((64, 64), (128, 128), (128, 256)))
#: What "auto" is given beside the types that kernels with a form for many products have: a and b, d, the accumulator.
WIDE = (("float32", "float32", "float32", "float32"),)


@dataclass(frozen=True)
class Case:
    """Products of one type, but not their numbers.

    Attributes:
        kernel: what ``kernel=`` gets, and its keywords in ``options``.
        types: a, b, d and the accumulator.
        shapes: m, n, k of each.
        layout: which operands are stored transposed, of all products.
        guarded: whether every buffer lies between poison.
    """

    kernel: str
    types: tuple[str, str, str, str]
    shapes: tuple[tuple[int, int, int], ...]
    layout: str = "NN"
    options: tuple[tuple[str, int], ...] = ()
    guarded: bool = True

    def __str__(self) -> str:
        some = ", ".join("x".join(map(str, shape)) for shape in self.shapes[:4])
        text = [self.kernel, "x".join(self.types[:2]) + "->" + self.types[2], f"{len(self.shapes)} products ({some}"]
        text[-1] += ", ...)" if len(self.shapes) > 4 else ")"
        return " ".join([*text, self.layout, *(f"{x}={y}" for x, y in self.options), *["guarded"] * self.guarded])

    def operands(self, rng: np.random.Generator) -> list[Product]:
        """Numbers."""
        return [Product.random(rng, shape, self.types, self.layout) for shape in self.shapes]


def draw(seed: int, index: int, rows: list[jaxgemm.Kernel]) -> Case:
    """The case of that index, whatever was drawn before: for those of the kernels that share launches, and "auto"."""
    rng = np.random.default_rng((seed, index, 3))
    able = [row for row in rows if row.many]
    row = one(rng, able) if able and rng.random() < 0.7 else None
    types = one(rng, types_together([row]) if row else [*types_together(able), *WIDE])
    case = Case(
        kernel=row.name if row else "auto",
        types=tuple(types),
        shapes=_shapes(rng),
        layout=one(rng, LAYOUTS),
        guarded=bool(rng.random() < 0.6),
    )
    return case if row is None or rng.random() < 0.5 else _with_options(rng, case)


def _with_options(rng: np.random.Generator, case: Case) -> Case:
    options = one(rng, TILES) | {"walk_height": int(rng.integers(1, 17))}
    return replace(case, options=tuple(options.items()))


def _shapes(rng: np.random.Generator) -> tuple[tuple[int, int, int], ...]:
    """Products of like or of very different sizes, of any alignment, some of them empty."""
    count = about(rng, 1, 150 if rng.random() < 0.3 else 12)  # many take seconds to lower and to compile
    alike, aligned = rng.random() < 0.5, rng.random() < 0.5
    shapes = []
    centre = [about(rng, 1, 600) for _ in range(3)]
    for _ in range(count):
        shape = [about(rng, max(x / 2, 1), 2 * x) if alike else about(rng, 1, 1000) for x in centre]
        shape = [-(-x // 8) * 8 if aligned else x for x in shape]
        while np.prod(shape) > MOST / count or max(x * y for x in shape for y in shape) > LARGEST / count:
            longest = shape.index(max(shape))
            shape[longest] //= 2
        if rng.random() < 0.04:
            shape[rng.integers(3)] = 0
        shapes.append((shape[0], shape[1], shape[2]))
    return tuple(shapes)


def program(case: Case) -> Callable[..., list[jax.Array]]:
    """The call, of all a and all b as they are stored."""
    precision = "highest" if case.types[0] == "float32" else None  # which XLA computes in TF32 otherwise

    def function(a: list[jax.Array], b: list[jax.Array]) -> list[jax.Array]:
        a = [x.T for x in a] if case.layout[0] == "T" else a
        b = [y.T for y in b] if case.layout[1] == "T" else b
        keywords = {"precision": precision, "preferred_element_type": case.types[2]}
        return jaxgemm.grouped_gemm(a, b, kernel=case.kernel, **keywords, **dict(case.options))

    return function


def fuzz(case: Case, numbers: Any) -> str:
    """Run a case on numbers of that seed: the kernel that ran the first of its products, or "xla".

    Raises:
        UnsupportedError: the kernel refuses it.
        AssertionError: a result is wrong.
    """
    rng = np.random.default_rng(numbers)
    sets = [case.operands(rng) for _ in range(SETS)]
    arrays = [[[jnp.asarray(getattr(p, side)) for p in products] for side in "ab"] for products in sets]
    with guards.guarded() if case.guarded else guards.counted() as called:
        lowered = jax.jit(program(case)).lower(*arrays[0])
    run, ours = lowered.compile(), len(called) == 1  # one call of ours for all that is not empty
    for products, given in zip(sets, arrays, strict=True):
        results = execute(case, run, given, products)
        if guards.errors:
            raise RuntimeError(f"guards: {guards.errors.pop()}")
        for p, x, y in zip(products, results, execute(case, run, given, products), strict=True):
            if case.guarded and called and x.size > 1 and guards.wrote_outside(x):
                raise AssertionError(f"product {p.label}: wrote outside of a result or of the workspace")
            same_bits(x, y, f"product {p.label}: two runs")
            accumulator = p.accumulator if ours else coarser(p.accumulator, p.out, case.types[0])
            replace(p, accumulator=accumulator).check(x, case.kernel)
    return called[0] if called else "xla"


def execute(case: Case, run: Callable[..., Any], arrays: list[Any], products: list[Product]) -> list[np.ndarray]:
    """One run, in memory that held something else."""
    if not case.guarded:
        poison([p.shape for p in products], case.types[2])
    return [np.asarray(x) for x in run(*arrays)]
