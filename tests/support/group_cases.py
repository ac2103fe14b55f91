"""Products of groups of rows: sizes of every kind, random operands, the call, and what its result must be.

The reference is that of oracle.py, a product for each group. Rows whose group has no weights must be zeros, whatever
the operands hold there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from arrays import array
from jax import lax
from oracle import Gated, Product, coarser, compare, dtype_of, finite, poison, random

import jaxgemm
from jaxgemm.choice.resolve import candidates, resolve
from jaxgemm.epilogue import Epilogue
from jaxgemm.kernels import UnsupportedError, configuration, device_for, find_kernel
from jaxgemm.precision import canonical
from jaxgemm.problem import Problem
from jaxgemm.products.call import call
from jaxgemm.ragged.form import Form
from jaxgemm.ragged.form import problem as grouped_problem

#: Rows times weights (held, k, n); the same with weights (held, n, k); and a sum over each group's rows.
FORMS = ("rows", "transposed", "sums")
KINDS = (
    "cuts",
    "skewed",
    "mostly empty",
    "one huge",
    "equal",
    "multiples of 16",
    "multiples of 128",
    "below",
    "above",
    "negative",
    "none",
)
#: How ``ragged_dot_general`` is told the forms other than "rows".
NUMBERS = {
    "transposed": lax.RaggedDotDimensionNumbers((((1,), (2,)), ((), ())), [0], [0]),
    "sums": lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], []),
}
#: Operands in the order in which a call takes them.
OPERANDS = ("lhs", "rhs", "up", "sizes", "offset", "bias")


def sizes(rng: np.random.Generator, kind: str, groups: int, m: int) -> np.ndarray:
    """Sizes of so many groups among m rows, one group at least."""
    if kind in ("cuts", "negative"):
        found = _cuts(rng, m, groups)
        if kind == "negative":
            found[rng.integers(groups, size=1 + groups // 3)] = -rng.integers(1, 2**31, endpoint=True)
    elif kind == "skewed":
        shares = 1 / np.arange(1, groups + 1) ** 1.5
        found = rng.multinomial(m, rng.permutation(shares / shares.sum()))
    elif kind == "mostly empty":
        found, some = np.zeros(groups, int), 1 + groups // 8
        found[rng.choice(groups, some, replace=False)] = _cuts(rng, m, some)
    elif kind == "one huge":
        found = np.ones(groups, int)
        found[rng.integers(groups)] = max(m - groups + 1, 1)
    elif kind == "equal":
        found = np.full(groups, m // groups)
    elif kind.startswith("multiples"):
        unit = int(kind.split()[-1])
        found = unit * _cuts(rng, m // unit, groups)
    elif kind == "below":
        found = _cuts(rng, int(rng.integers(m + 1)), groups)
    elif kind == "above":
        found = _cuts(rng, m + int(rng.integers(1, 2 * m + groups + 1)), groups)
        if rng.random() < 0.3:  # a sum that 32 bits cannot hold
            found[rng.integers(groups)] = 2**31 - 1
    else:
        assert kind == "none", kind
        found = np.zeros(groups, int)
    return found.astype(np.int32)


def _cuts(rng: np.random.Generator, total: int, groups: int) -> np.ndarray:
    cuts = np.sort(rng.integers(0, total + 1, groups - 1))
    return np.diff(cuts, prepend=0, append=total)


@dataclass(frozen=True)
class Grouped:
    """One call: operands and keywords.

    Attributes:
        form: one of FORMS.
        lhs: (m, k).
        rhs: (held, k, n), (held, n, k) or (m, n), by the form.
        sizes: (groups,).
        held: how many groups have weights or, of sums, a result.
        out: the result's type.
        offset: the first of these groups; None where all have.
        bias: (held, n).
        activation: a name.
        up: as rhs: the second weights of a gated pair.
        precision: as ``ragged_dot`` takes it.
    """

    form: str
    lhs: np.ndarray
    rhs: np.ndarray
    sizes: np.ndarray
    held: int
    out: str
    offset: int | None = None
    bias: np.ndarray | None = None
    activation: str | None = None
    up: np.ndarray | None = None
    precision: str | None = None

    @classmethod
    def random(
        cls,
        rng: np.random.Generator,
        form: str,
        shape: tuple[int, int, int],
        sizes: np.ndarray,
        types: tuple[str, str],
        *,
        held: int | None = None,
        bias: bool = False,
        gated: bool = False,
        **keywords: Any,
    ) -> Grouped:
        """Random operands; shape is m, k, n, and types those of the operands and of the result."""
        m, k, n = shape
        held = len(sizes) if held is None else held
        weights = weights_shape(form, shape, held)
        lhs, rhs = random(rng, (m, k), types[0]), random(rng, weights, types[0])
        row = random(rng, (held, n), types[1]) if bias else None
        up = None
        if gated:  # weights at which a product is of its rows' size: two are multiplied
            scale = max(k, 1) ** -0.5
            rhs, up = ((random(rng, weights, "float64") * scale).astype(rhs.dtype) for _ in range(2))
        return cls(form, lhs, rhs, sizes, held, types[1], bias=row, up=up, **keywords)

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        offset = None if self.offset is None else np.array([self.offset], np.int32)
        found = {name: offset if name == "offset" else getattr(self, name) for name in OPERANDS}
        return {name: x for name, x in found.items() if x is not None}

    @property
    def shape(self) -> tuple[int, ...]:
        columns = self.rhs.shape[-2 if self.form == "transposed" else -1]
        m, k = self.lhs.shape
        return (self.held, k, columns) if self.form == "sums" else (m, columns)

    def call(self, arrays: dict[str, Any], kernel: str) -> jax.Array:
        """The product of arrays like this one's own."""
        x, w, sizes = (arrays[name] for name in ("lhs", "rhs", "sizes"))
        keywords = {"group_offset": arrays.get("offset"), "precision": self.precision, "kernel": kernel}
        if self.form == "sums" and self.held != len(self.sizes):
            return self._gradient(x, w, sizes, keywords)
        keywords["preferred_element_type"] = self.out
        if self.up is not None:
            return jaxgemm.ragged_gated(x, w, arrays["up"], sizes, activation=self.activation, **keywords)
        if self.form == "rows":
            return jaxgemm.ragged_dot(x, w, sizes, bias=arrays.get("bias"), activation=self.activation, **keywords)
        return jaxgemm.ragged_dot_general(x, w, sizes, NUMBERS[self.form], **keywords)

    @property
    def problem(self) -> Problem:
        """What a kernel is asked for."""
        epilogue = Epilogue(has_bias=self.bias is not None, activation=self.activation)
        shape, types = (*self.lhs.shape, self.shape[-1]), (self.lhs.dtype.name, self.out)
        return problem(
            self.form, shape, len(self.sizes), self.held, types, epilogue=epilogue, gated=self.up is not None
        )

    def launched(self, arrays: dict[str, Any], kernel: str, options: dict[str, int]) -> jax.Array:
        """As ``call``, in one launch of a kernel with these options, which no public function takes.

        Raises:
            UnsupportedError: the kernel cannot.
        """
        config = configuration(find_kernel(kernel), tuple(options.items()))
        choice = resolve(kernel, config, self.problem, device_for("cuda"), canonical(self.precision))
        if isinstance(choice, str):
            raise UnsupportedError(choice)
        arrays = {"offset": jnp.zeros(1, jnp.int32), **arrays}
        return call(choice, self.problem, self.shape, [arrays[name] for name in OPERANDS if name in arrays])

    def _gradient(self, x: jax.Array, ct: jax.Array, sizes: jax.Array, keywords: dict[str, Any]) -> jax.Array:
        """Sums of some of the groups alone: only gradients of weights have these."""
        weights = jax.ShapeDtypeStruct(self.shape, x.dtype)
        pull = jax.linear_transpose(lambda w: jaxgemm.ragged_dot(x, w, sizes, **keywords), weights)
        (out,) = pull(ct)
        return out

    def parts(self) -> Iterator[tuple[int, slice]]:
        """Of each group that is held its place among these, and its rows."""
        m = self.lhs.shape[0]
        ends = np.minimum(np.cumsum(np.clip(self.sizes.astype(np.int64), 0, None)), m)
        for group, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            place = group - (self.offset or 0)
            if 0 <= place < self.held:
                yield place, slice(int(begin), int(end))

    def spoilt(self) -> Grouped:
        """With NaN in all rows that are of no group that is held."""
        free = np.ones(self.lhs.shape[0], bool)
        for _, rows in self.parts():
            free[rows] = False
        names = ("lhs", "rhs") if self.form == "sums" else ("lhs",)
        arrays = {name: getattr(self, name).copy() for name in names}
        for x in arrays.values():
            x[free] = np.nan
        return replace(self, **arrays)

    def check(self, result: np.ndarray, *, exact: bool, kernel: str = "") -> None:
        """AssertionError if the result is wrong.

        Args:
            result: of the call.
            exact: whether it was rounded once, as by a kernel of ours; else XLA may have rounded sums in between.
            kernel: which it was.
        """
        assert (result.shape, result.dtype) == (self.shape, dtype_of(self.out)), f"{result.shape} {result.dtype}"
        wide = "float64" if self.lhs.dtype == np.float64 else "float32"
        accumulator = wide if exact else coarser(wide, self.out, self.lhs.dtype.name)
        unwritten = np.ones(result.shape[0], bool)
        for place, rows in self.parts():
            own = place if self.form == "sums" else rows
            empty = rows.start == rows.stop
            unwritten[own] = empty if self.form == "sums" else False
            if not empty:
                _check_part(self._part(place, rows, accumulator), result[own], kernel)
        assert not result[unwritten].any(), "what no group has rows for is not zero"

    def _part(self, place: int, rows: slice, accumulator: str) -> Product | Gated:
        label = f"group {place}, rows {rows.start} to {rows.stop}"
        x = self.lhs[rows]
        if self.up is not None:
            arrays = {"x": x, "gate": self.rhs[place], "up": self.up[place]}
            return Gated(arrays, self.activation, self.out, accumulator)
        if self.form == "sums":
            return Product(x, self.rhs[rows], "TN", self.out, accumulator, precision=self.precision, label=label)
        layout = "NT" if self.form == "transposed" else "NN"
        bias = None if self.bias is None else self.bias[place]
        epilogue = {"bias": bias, "activation": self.activation, "precision": self.precision}
        return Product(x, self.rhs[place], layout, self.out, accumulator, **epilogue, label=label)


def _check_part(part: Product | Gated, result: np.ndarray, kernel: str) -> None:
    with np.errstate(all="ignore"):
        if isinstance(part, Gated) or (part.operands[0].shape[-1] and finite(part.a) and finite(part.b)):
            part.check(result, kernel)
        else:
            compare(result, *part.reference(kernel)[:2])


def weights_shape(form: str, shape: tuple[int, int, int], held: int) -> tuple[int, ...]:
    """The shape of rhs, of a product of m, k, n."""
    m, k, n = shape
    return {"rows": (held, k, n), "transposed": (held, n, k), "sums": (m, n)}[form]


def problem(
    form: str,
    shape: tuple[int, int, int],
    groups: int,
    held: int,
    types: tuple[str, str],
    *,
    epilogue: Epilogue,
    gated: bool,
) -> Problem:
    """What a kernel is asked for by a product of ``Grouped``, of float32 at full precision; no sizes, no numbers."""
    lhs, rhs = (jax.ShapeDtypeStruct(s, dtype_of(types[0])) for s in (shape[:2], weights_shape(form, shape, held)))
    sizes = jax.ShapeDtypeStruct((groups,), jnp.int32)
    asked = Form(form == "sums", form == "transposed", held)
    asked_for = grouped_problem(asked, lhs, rhs, sizes, dtype_of(types[1]), epilogue, gated)
    return replace(asked_for, arithmetic="bf16_x6") if types[0] == "float32" else asked_for


def configurations(kernel: str, problem: Problem) -> list[dict[str, int]]:
    """All options with which a kernel can compute a problem, those too that its model takes only if asked to; none on a
    machine whose library has no such kernel.
    """
    row, device = find_kernel(kernel), device_for("cuda")
    fixed = [configuration(row, (("tile_m", rows),)) for rows in row.options["tile_m"] if rows]
    found = [c for config in fixed for c in candidates(row, config, problem, device)]
    return [dict(zip(row.options, c.config, strict=True)) for c in found]


def together(products: list[Grouped], mapped: tuple[str, ...], kernel: str) -> tuple[Any, dict[str, np.ndarray]]:
    """A batch of products that differ in the operands that are named: the function, and its operands."""
    first = products[0]
    arrays = {
        name: np.stack([p.arrays[name] for p in products]) if name in mapped else x for name, x in first.arrays.items()
    }
    axes = {name: 0 if name in mapped else None for name in arrays}

    def alone(arrays: dict[str, Any]) -> jax.Array:
        return first.call(arrays, kernel)

    return (jax.vmap(alone, (axes,)) if mapped else alone), arrays


def fused(p: Grouped, text: str) -> bool:
    """Whether in a lowered program the kernel's call has all of a product in it."""
    wanted = ["jaxgemm_grouped_gated_gemm"] if p.up is not None else ["jaxgemm_grouped_gemm"]
    wanted += ["has_bias = true"] if p.bias is not None else []
    wanted += [f'activation = "{p.activation}"'] if p.activation else []
    return all(part in text for part in wanted)


def run(program: Callable[..., jax.Array], p: Grouped, arrays: dict[str, np.ndarray] | None = None) -> np.ndarray:
    """The result of a compiled product, by default of these operands: twice, and in memory that held something else.

    Raises:
        AssertionError: the bits differ.
    """
    given = on_device(p.arrays if arrays is None else arrays)
    poison([p.shape], p.out)
    first, again = (np.asarray(program(given)) for _ in range(2))
    assert first.tobytes() == again.tobytes(), "two runs differ"
    return first


def on_device(arrays: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    return {name: array(x) for name, x in arrays.items()}
