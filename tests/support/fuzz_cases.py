"""A random product for tests/fuzz.py: drawn from a seed and an index, run, and compared with float64."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import cases
import guards
import jax
import jax.numpy as jnp
import numpy as np
from oracle import Gated, Product, coarser, compare, dtype_of, finite, operand_eps, poison

import jaxgemm
from jaxgemm.choice.resolve import least_exact
from jaxgemm.precision import BY_PARTS
from jaxgemm.products.scales import most_terms

#: Multiplications of a product at most, so that the oracle takes well under a second, and elements of an array.
MOST, LARGEST = 3e8, 4e6
#: Sets of operands for each compiled program; the last one may hold NaN or infinity.
SETS = 2
#: How often a kernel is drawn, by its family: the ladder's are many, and sm90 is many kernels.
WEIGHTS = {"ladder": 0.3, "sm90": 3.0}

Batches = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Case:
    """A product, but not its numbers.

    Attributes:
        kernel: what ``kernel=`` gets, and its keywords in ``options``.
        types: a, b, d and the accumulator.
        shape: m, n, k.
        batches: axes in front of a's and b's.
        layout: which operand is stored transposed.
        stored: the order in which a's and b's axes lie in memory.
        traced: whether alpha is an array, and so applied outside of the kernel.
        precision: of float32 operands and of fp8; None: JAX's default, or where XLA may compute the product, "highest".
        scales: of a and b: "whole" for one number, "lines" for one a row or column, None for none.
        special: what the last set of operands holds: "row" (of a, NaN), "column" (of b, infinity), "member" (of a's
            batch, NaN) or "elements" (one each); None: numbers.
        guarded: whether every buffer lies between poison.
    """

    kernel: str
    types: tuple[str, str, str, str]
    shape: tuple[int, int, int]
    batches: Batches = ((), ())
    layout: str = "NN"
    stored: tuple[tuple[int, ...], tuple[int, ...]] = ((0, 1), (0, 1))
    alpha: float = 1.0
    beta: float = 0.0
    traced: bool = False
    bias: bool = False
    activation: str | None = None
    options: tuple[tuple[str, int], ...] = ()
    precision: str | None = None
    scales: tuple[str | None, str | None] = (None, None)
    batch_invariant: bool = False
    gated: bool = False
    special: str | None = None
    guarded: bool = True

    def __str__(self) -> str:
        m, n, k = self.shape
        text = [self.kernel, "x".join(self.types[:2]) + "->" + self.types[2], f"{m}x{n}x{k}", self.layout]
        text += [f"batches={self.batches}"] if any(self.batches) else []
        for axes, name in zip(self.stored, "ab", strict=True):
            text += [f"{name}_stored={axes}"] if axes != tuple(range(len(axes))) else []
        text += [f"{name}={value}" for name, value in self.options]
        text += [f"{name}={value}" for name in ("alpha", "beta") if (value := getattr(self, name)) != (name == "alpha")]
        text += [f"scales={self.scales}"] if any(self.scales) else []
        text += [x for x in (self.activation, self.precision, self.special) if x]
        text += [name for name in ("traced", "bias", "batch_invariant", "gated", "guarded") if getattr(self, name)]
        return " ".join(text)

    @property
    def integer(self) -> bool:
        return np.issubdtype(dtype_of(self.types[2]), np.integer)


# --- Drawing ----------------------------------------------------------------------------------------------------


def draw(seed: int, index: int, rows: list[jaxgemm.Kernel]) -> Case:
    """The case of that index, whatever was drawn before: out of these kernels, and "auto"."""
    rng = np.random.default_rng((seed, index))
    weights = np.array([WEIGHTS.get(row.family, 1.0) for row in rows])
    weights = np.append(weights, weights.sum() / 4)
    at = rng.choice(len(weights), p=weights / weights.sum())
    row = rows[at] if at < len(rows) else None
    types = tuple(one(rng, row.types if row else _every_type(rows)))
    if rng.random() < (0.3 if row is None or row.gated else 0.03) and dtype_of(types[0]).itemsize > 1:
        return _gated(rng, row.name if row else "auto", types)
    batches = _batches(rng)
    shape = _extents(rng, math.prod(np.broadcast_shapes(*batches)), thin=row is not None and row.name == "gemv")
    case = Case(row.name if row else "auto", types, shape, batches)
    stored = tuple(_order(rng, len(batch) + 2) for batch in batches)
    if (row is None or row.scaled) and dtype_of(types[0]).itemsize == 1:
        case = _scaled(rng, case)
    case = _epilogue(rng, replace(case, layout=one(rng, cases.LAYOUTS), stored=stored))
    if row and row.options and rng.random() < 0.4:
        names = rng.permutation(list(row.options))[: rng.integers(1, 4)]
        free = (*cases.FREE_OPTION_VALUES, *range(4, 16))
        case = replace(case, options=tuple((str(x), int(one(rng, row.options[x] or free))) for x in sorted(names)))
    if row and row.name == "sm90" and types[0] == "float32":
        case = replace(case, precision=one(rng, (None, "highest", *BY_PARTS)))
    if (row is None or row.batch_invariant or row.pins) and rng.random() < 0.1:
        case = replace(case, batch_invariant=True)
    special = (
        None if "int" in case.types[0] or rng.random() < 0.7 else one(rng, ("row", "column", "member", "elements"))
    )
    if case.activation not in (None, "relu") and special in ("column", "elements"):
        special = "row"  # what becomes of infinity is the activation's own affair
    return replace(case, special=special, guarded=bool(rng.random() < 0.6))


def _scaled(rng: np.random.Generator, case: Case) -> Case:
    """With scales, and a result of floats, half of the time; fp8 may ask for the highest precision."""
    floats = case.types[0].startswith("float8")
    if floats and rng.random() < 0.3:
        case = replace(case, precision="highest")
    may_wrap = not floats and case.shape[2] > most_terms([dtype_of(x) for x in case.types[:2]])
    if may_wrap or rng.random() < 0.5:
        return case
    wide = "uint8" in case.types[:2]  # whose sums grow with k
    out = one(rng, ("float32", "bfloat16") if wide else ("float32", "bfloat16", "float16"))
    scales = one(rng, (("lines", "lines"), ("lines", "whole"), (None, "lines"), ("whole", "whole"), ("lines", None)))
    return replace(case, types=(*case.types[:2], out, "float32"), scales=scales)


def _gated(rng: np.random.Generator, kernel: str, types: Any) -> Case:
    activation = one(rng, (None, *cases.ACTIVATIONS))
    shape = _extents(rng, 2, thin=False)
    rows = one(rng, ((), (1,), (3,)))
    shape = (shape[0] if rows != (3,) else max(shape[0] // 3, 1), *shape[1:])
    case = Case(kernel, types, shape, (rows, ()), activation=activation, gated=True)
    return replace(case, guarded=bool(rng.random() < 0.6))


def one(rng: np.random.Generator, choices: Any) -> Any:
    return choices[rng.integers(len(choices))]


def types_together(rows: list[jaxgemm.Kernel]) -> list[Any]:
    """The types that kernels multiply in groups and lists: 8 bits are multiplied in single products."""
    return sorted({types for row in rows for types in row.types if dtype_of(types[0]).itemsize > 1})


def _every_type(rows: list[jaxgemm.Kernel]) -> list[Any]:
    return sorted({types for row in rows for types in row.types})


def about(rng: np.random.Generator, low: float, high: float) -> int:
    """Uniform in the logarithm."""
    return int(low * (high / low) ** rng.random())


def _extents(rng: np.random.Generator, batch: int, *, thin: bool) -> tuple[int, int, int]:
    extents = [about(rng, 1, 2000) for _ in range(3)]
    kind = rng.random()
    if kind < 0.15:  # one extent far longer than the others
        extents = [about(rng, 1, 130) for _ in range(3)]
        extents[rng.integers(3)] = about(rng, 2000, 60000)
    elif kind < 0.3 or (thin and kind < 0.95):
        extents[rng.integers(2)] = int(rng.integers(1, 9))
    for i in range(3):
        near = rng.random()
        if near < 0.35:  # whole vectors and tiles, and one off
            unit = one(rng, (8, 16, 64, 128))
            extents[i] = max(-(-extents[i] // unit) * unit + (0 if near < 0.25 else one(rng, (-1, 1))), 1)
    while True:
        m, n, k = extents
        if m * n * k * batch <= MOST and max(m * n, m * k, k * n) * batch <= LARGEST:
            break
        longest = extents.index(max(extents))
        extents[longest] = -(-extents[longest] * 2 // 3)
    if rng.random() < 0.04:
        extents[rng.integers(3)] = 0
    return tuple(extents)


def _batches(rng: np.random.Generator) -> Batches:
    x, y, z = about(rng, 1, 24), int(rng.integers(1, 6)), int(rng.integers(1, 4))
    forms = (((x,), (x,)), ((x,), ()), ((), (x,)), ((1,), (x,)), ((y, z), (y, z)), ((y, 1), (1, z)), ((1, z), (y, 1)))
    forms += (((y, z), (z,)), ((z,), (y, z)), ((y, z, 2), (y, 1, 2)), ((0,), (0,)))
    return one(rng, forms) if rng.random() < 0.4 else ((), ())


def _order(rng: np.random.Generator, rank: int) -> tuple[int, ...]:
    """Axes as they lie in memory: mostly in order, else any."""
    permuted = rng.random() < (0.3 if rank > 2 else 0.1)
    return tuple(int(i) for i in rng.permutation(rank)) if permuted else tuple(range(rank))


def _epilogue(rng: np.random.Generator, case: Case) -> Case:
    alpha, beta = one(rng, cases.INTEGER_SCALINGS if case.integer else cases.SCALINGS)
    if rng.random() < 0.5:
        alpha, beta = 1, 0
    activation = one(rng, ("relu",) if case.integer else cases.ACTIVATIONS) if rng.random() < 0.3 else None
    traced = not case.integer and rng.random() < 0.05
    wider = ("float32", "bfloat16", "float16", "float64")
    if not case.integer and rng.random() < 0.05:  # a result that no kernel need write
        case = replace(case, types=(*case.types[:2], one(rng, wider), case.types[3]))
    bias = bool(rng.random() < 0.3)
    return replace(case, alpha=alpha, beta=beta, bias=bias, activation=activation, traced=traced)


# --- Running ----------------------------------------------------------------------------------------------------


def operands(case: Case, rng: np.random.Generator, *, special: bool) -> Product | Gated:
    """Numbers for a case."""
    if case.gated:
        m, n, k = case.shape
        shapes = {"x": (*case.batches[0], m, k), "gate": (k, n), "up": (k, n)}
        scale = {"x": 1.0, "gate": max(k, 1) ** -0.5, "up": max(k, 1) ** -0.5}
        arrays = {name: rng.standard_normal(s) * scale[name] for name, s in shapes.items()}
        arrays = {name: x.astype(dtype_of(case.types[0])) for name, x in arrays.items()}
        return Gated(arrays, case.activation, case.types[2], case.types[3])
    keywords = {"alpha": case.alpha, "beta": case.beta, "activation": case.activation}
    keywords |= {"precision": case.precision} if case.precision else {}
    keywords |= scales(case, rng)
    p = Product.random(rng, case.shape, case.types, case.layout, case.batches, bias=case.bias, **keywords)
    a, b = p.operands  # views of p's arrays
    if special and case.special and a.size and b.size:
        row, column = rng.integers(a.shape[-2]), rng.integers(b.shape[-1])
        if case.special == "row":
            a[..., row, :] = np.nan
        elif case.special == "column":
            b[..., :, column] = one(rng, (np.inf, -np.inf))
        elif case.special == "member":
            a[(*(rng.integers(s) for s in a.shape[:-2]), ...)] = np.nan
        else:
            a[(*(rng.integers(s) for s in a.shape),)] = np.nan
            b[(*(rng.integers(s) for s in b.shape),)] = -np.inf
    return p


def scales(case: Case, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Scales for a case, by which float16 holds its results."""
    batch = np.broadcast_shapes(*case.batches)
    lines = {"a_scale": (*batch, case.shape[0], 1), "b_scale": (*batch, 1, case.shape[1])}
    found = {}
    for (name, shape), kind in zip(lines.items(), case.scales, strict=True):
        if kind:
            found[name] = np.asarray(rng.uniform(1e-4, 1e-3, () if kind == "whole" else shape), np.float32)
    return found


def program(case: Case) -> Callable[[dict[str, jax.Array]], jax.Array]:
    """The call; a and b come as they lie in memory."""
    # What XLA computes in TF32 otherwise.
    exact = case.types[0] == "float32" and operand_eps(case.kernel, "float32") == 0
    keywords = {"kernel": case.kernel, "out_dtype": case.types[2], "activation": case.activation}

    def gated(arrays: dict[str, jax.Array]) -> jax.Array:
        with jax.default_matmul_precision("highest") if exact else contextlib.nullcontext():
            return jaxgemm.gated_gemm(arrays["x"], arrays["gate"], arrays["up"], **keywords)

    def gemm(arrays: dict[str, jax.Array]) -> jax.Array:
        a, b = (jnp.transpose(arrays[x], np.argsort(axes)) for x, axes in zip("ab", case.stored, strict=True))
        alpha = jnp.asarray(case.alpha, case.types[3]) if case.traced else case.alpha
        return jaxgemm.gemm(
            a,
            b,
            arrays.get("c"),
            alpha=alpha,
            beta=case.beta,
            transpose_a=case.layout[0] == "T",
            transpose_b=case.layout[1] == "T",
            bias=arrays.get("bias"),
            a_scale=arrays.get("a_scale"),
            b_scale=arrays.get("b_scale"),
            precision="highest" if exact else case.precision,
            batch_invariant=case.batch_invariant,
            **keywords,
            **dict(case.options),
        )

    return gated if case.gated else gemm


def stored(case: Case, p: Product | Gated) -> dict[str, jax.Array]:
    """The operands on the device, as they lie in memory."""
    arrays = dict(p.arrays)
    if not case.gated:
        for name, axes in zip("ab", case.stored, strict=True):
            arrays[name] = np.transpose(arrays[name], axes)
    return {name: jnp.asarray(np.asarray(x, order="C")) for name, x in arrays.items()}


def compiled(case: Case, arrays: dict[str, jax.Array]) -> tuple[Callable[..., Any], list[str]]:
    """The program, and the kernels that it calls, guarded or not."""
    # Scaled parts are for products that take longer than most of these.
    exactness = least_exact() if case.precision else contextlib.nullcontext()
    with exactness, guards.guarded() if case.guarded else guards.counted() as called:
        lowered = jax.jit(program(case)).lower(arrays)
    return lowered.compile(), called


def fuzz(case: Case, numbers: Any) -> str:
    """Run a case on numbers of that seed: its kernel, or "xla".

    Raises:
        UnsupportedError: the kernel refuses it.
        AssertionError: a result is wrong.
    """
    rng = np.random.default_rng(numbers)
    given = [operands(case, rng, special=i == SETS - 1) for i in range(SETS)]
    arrays = [stored(case, p) for p in given]
    run, called = compiled(case, arrays[0])
    ours = bool(called) and (not case.gated or case.kernel != "auto" or len(called) == 1)  # two are rounded in between
    results = []
    for p, x in zip(given, arrays, strict=True):
        results.append(twice(case, run, x, p, guarded=case.guarded and bool(called)))
        check(case, p, results[-1], ours=ours)
    if case.batch_invariant and case.shape[0] > 1:
        fewer_rows(case, given[0], results[0], rng)  # a NaN's own bits may follow other rows
    return called[0] if called else "xla"


def twice(case: Any, run: Callable[..., Any], arrays: dict[str, jax.Array], p: Any, *, guarded: bool) -> np.ndarray:
    """The result of two runs of a case of any kind.

    Raises:
        AssertionError: their bits differ or, if guarded, a kernel wrote where it must not.
    """
    first = execute(case, run, arrays, p)
    if guards.errors:
        raise RuntimeError(f"guards: {guards.errors.pop()}")
    if guarded and guards.wrote_outside(first):
        raise AssertionError("wrote outside of its result or of its workspace")
    same_bits(first, execute(case, run, arrays, p), "two runs")
    return first


def execute(case: Any, run: Callable[..., Any], arrays: dict[str, jax.Array], p: Any) -> np.ndarray:
    """One run, in memory that held something else."""
    if not case.guarded:
        poison([p.shape], p.out)
    return np.asarray(run(arrays))


def fewer_rows(case: Case, p: Product, full: np.ndarray, rng: np.random.Generator) -> None:
    """Some of the rows alone have the bits that they have among the others."""
    rows = int(rng.integers(1, case.shape[0]))
    last = slice(case.shape[0] - rows, None)
    a = p.a[..., last] if case.layout[0] == "T" else p.a[..., last, :]
    part = replace(p, a=a, c=None if p.c is None else p.c[..., last, :])
    if p.a_scale is not None and p.a_scale.ndim:
        part = replace(part, a_scale=p.a_scale[..., last, :])
    case = replace(case, shape=(rows, *case.shape[1:]))
    arrays = stored(case, part)
    run, _ = compiled(case, arrays)
    same_bits(execute(case, run, arrays, part), full[..., last, :], f"the last {rows} rows alone and among all")


# --- Judging ----------------------------------------------------------------------------------------------------


def same_bits(one: np.ndarray, other: np.ndarray, what: str) -> None:
    if one.tobytes() != other.tobytes():
        bits = [np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}") for x in (one, other)]
        wrong = np.argwhere(bits[0] != bits[1])
        raise AssertionError(f"{what} differ in {len(wrong)} of {one.size} elements, first at {wrong[0]}")


def check(case: Case, p: Product | Gated, result: np.ndarray, *, ours: bool) -> None:
    """AssertionError if the result is wrong. XLA rounds its own products before what follows, unless it fuses that."""
    if not ours and not case.integer:
        rounded = [x for x in (case.types[2], case.types[0]) if "int" not in x]
        p = replace(p, accumulator=coarser(p.accumulator, *rounded))
    with np.errstate(all="ignore"):
        # The bound on the norm is for errors that differ: where nothing is summed, all rows round alike.
        sums = not case.gated and case.alpha != 0 and case.shape[2] > 0
        if case.gated or case.integer or (sums and finite(p.a) and finite(p.b)):
            p.check(result, case.kernel)
            return
        assert (result.shape, result.dtype) == (p.shape, dtype_of(p.out))
        expected, bound, _ = p.reference(case.kernel)
        compare(result, expected, bound)
